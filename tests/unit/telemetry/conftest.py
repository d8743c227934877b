import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "fakes" / "nvml"))

from fake_nvml import fake_nvml, fake_nvml_library  # noqa: F401
