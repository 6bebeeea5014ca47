"""``gangline initialize``: the program of a TrainJob's initializer pods."""

import click

from gangline.initializer.settings import STEPS


@click.command("initialize")
@click.argument("step", type=click.Choice(STEPS))
def initialize_command(step: str) -> None:
    """Fetch the data or the model of a training.

    Runs in the initializer pods of a TrainJob. STORAGE_URI names the source: hf://OWNER/NAME,
    s3://BUCKET/PATH, file:///PATH or pvc://CLAIM/PATH. OUTPUT_DIR is the folder that is written,
    /workspace/dataset or /workspace/model if it is not given.

    \b
    IGNORE_PATTERNS    patterns of files that are not fetched, with commas between them
    ACCESS_TOKEN       token of Hugging Face
    ENDPOINT           address of the server, if it is not that of Hugging Face or AWS
    ACCESS_KEY_ID, SECRET_ACCESS_KEY, REGION, ROLE_ARN    credentials for S3
    """
    from gangline.elastic.agent.termination_message import write_termination_message
    from gangline.initializer.main import main

    main(step, write_termination_message)
