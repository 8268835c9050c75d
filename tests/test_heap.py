"""What a TPU program holds, as its buffer assignment says."""

from pathlib import Path

from planner.heap import Held, held, written

ASSIGNMENT = """BufferAssignment:
allocation 0: size 512, thread-local:
 value: <1 add @0> (size=4,offset=0): f32[]
allocation 1: size 32768, parameter 58, shape |f32[64,128]| at ShapeIndex {}, maybe-live-out:
allocation 2: size 2048, parameter 60, shape |s32[4,64]| at ShapeIndex {}:
allocation 63: size 1024, maybe-live-out:
allocation 64: size 512, constant:
allocation 90: size 2163200, preallocated-temp:
 value: <2557 copy-start.70{} @0> (size=512,offset=2162688): (f32[8]{0:T(128)S(1)}, f32[8]{0}, u32[])
 value: <2570 copy-start.71{} @0> (size=512,offset=2146304): (f32[8]{0:T(128)S(1)}, f32[8]{0}, u32[])
 value: <2571 fusion.2{0} @1> (size=32768,offset=3141632): f32[64,128]{1,0:T(8,128)}
allocation 91: size 3657248, color 1, preallocated-temp:
"""
PROGRAM = "HloModule m\n\n%f () -> f32[] {\n  ROOT %c = f32[] constant(0)\n}\n\nENTRY %main () -> f32[] {\n"
LAST = '  ROOT %x = f32[] constant(1), metadata={op_name="x"}\n'


def test_the_heap_is_what_the_main_memory_holds():
    assert held(ASSIGNMENT) == Held(34816.0, 33792.0, 32768.0, 2163200.0 - 2 * 16384)


def test_nothing_is_read_before_it_is_written_whole(tmp_path: Path):
    assert written(tmp_path) is None
    (tmp_path / "module_0000.jit_step.after_optimizations-buffer-assignment.txt").write_text(ASSIGNMENT)
    assert written(tmp_path) is None
    scheduled = tmp_path / "module_0000.jit_step.after_optimizations_after_buffer_assignment.txt"
    for part in ("", PROGRAM, PROGRAM + LAST):
        scheduled.write_text(part)
        assert written(tmp_path) is None
    scheduled.write_text(PROGRAM + LAST + "}\n\n")
    assert written(tmp_path) == (ASSIGNMENT, PROGRAM + LAST + "}\n\n")
