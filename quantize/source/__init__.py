"""The model to build from, looked over before any work starts."""

from quantize.source.model import SourceModel as SourceModel
from quantize.source.open import open_source as open_source
