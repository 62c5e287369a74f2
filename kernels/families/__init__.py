"""One file a family, its knobs and rules beside it where they are long.

:data:`kernels.registry.FAMILIES` names them all.
"""
