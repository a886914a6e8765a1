"""What the retrieval check learns, and what it asks.

`scripts/` holds conversations, `outputs.toml` and `runs.toml` the facts in long outputs and in logs
of failed runs; `chats` and `material` make of them what gptel and GitHub write.  `questions.toml`
asks for what stands there.
"""

from pathlib import Path

ROOT = Path(__file__).absolute().parent
