"""Coverage-guided fuzzing of streams of frames (atheris; `make soak` runs it).

python tests/fuzz/atheris_frames.py CORPUS_FOLDER -max_total_time=1200
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server"), str(HERE.parent / "storage")]

if __name__ == "__main__":
    from fuzz_kit.guided import run

    run("frames")
