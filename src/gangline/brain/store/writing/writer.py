"""Everything that is written: facts, advice and actions, models."""

from gangline.brain.store.writing.advice import AdviceWriter
from gangline.brain.store.writing.facts import FactWriter
from gangline.brain.store.writing.models import ModelWriter


class Writer(FactWriter, AdviceWriter, ModelWriter):
    """Writes to the database; each method is one transaction, or several of at most 500 rows."""
