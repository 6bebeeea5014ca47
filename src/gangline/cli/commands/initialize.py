"""``gangline initialize``: the program of a TrainJob's initializer pods."""

import click

from gangline.cli.params.command import command
from gangline.initializer.settings import STEPS


@command(
    "initialize",
    examples="""
        STORAGE_URI=hf://ylecun/mnist gangline initialize dataset
        STORAGE_URI=s3://models/base OUTPUT_DIR=/data gangline initialize model
    """,
)
@click.argument("step", type=click.Choice(STEPS))
def initialize_command(step: str) -> None:
    """Fetch the data or the model of a training.

    Runs in the initializer pods of a TrainJob. STORAGE_URI names the source: hf://OWNER/NAME,
    s3://BUCKET/PATH, file:///PATH or pvc://CLAIM/PATH. OUTPUT_DIR is the folder that is written,
    /workspace/dataset or /workspace/model if it is not given.

    \b
    IGNORE_PATTERNS  patterns of files that are not fetched, separated by commas
    ACCESS_TOKEN     token of Hugging Face
    ENDPOINT         address of a server other than Hugging Face's or AWS'
    ACCESS_KEY_ID, SECRET_ACCESS_KEY, REGION, ROLE_ARN  credentials for S3
    """
    from gangline.elastic.agent.termination_message import write_termination_message
    from gangline.initializer.main import main

    main(step, write_termination_message)
