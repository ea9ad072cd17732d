"""The page about GPUs says what exports refuse, in the words of the refusals."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_says_what_exports_refuse():
    code = """
import sys
sys.path.insert(0, "tools")
from pathlib import Path
from refusals import refused
page = Path("docs/webgpu.md").read_text()
assert refused(page) == page, "docs/webgpu.md is stale: run tools/generate.py"
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
