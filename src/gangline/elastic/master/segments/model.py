"""The reported shape of the model in the form in which it is published."""

from gangline.api.jobs.training_facts import ModelShapeFacts
from gangline.elastic.training_report import ModelShape


def model_facts(shape: ModelShape | None) -> ModelShapeFacts | None:
    """Return the facts; None if nothing is reported."""
    if shape is None or shape == ModelShape():
        return None
    return ModelShapeFacts(
        shape.params, shape.layers, shape.hidden, shape.heads, shape.vocab, shape.sequence
    )
