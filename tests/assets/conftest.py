"""The training code is a set of scripts under assets/, not an installed package."""

import sys
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "assets"
sys.path.insert(0, str(ASSETS))
