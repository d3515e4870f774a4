"""The model to build from, looked over before any work starts."""

from quantize.source.open import open_source as open_source
from quantize.source.shapes import SourceModel as SourceModel
