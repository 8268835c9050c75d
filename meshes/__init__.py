"""The machine: chips, wires, logical meshes, and what a collective takes on them. Imports numpy at most."""
