"""Tool outputs: what the model gets of a large one, and how it recalls the rest.  Pure.

The modules import each other in this order: `lines`, `segments`, `formats`, `scoring`, `asking`,
`selecting`, `excerpting`, `recalling`.
"""
