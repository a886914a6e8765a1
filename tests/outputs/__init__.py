"""The corpus of real tool outputs: how it was recorded, what each needs, and how it grows."""

from pathlib import Path

OUTPUTS = Path(__file__).absolute().parent.parent.parent / "fixtures" / "outputs"
