"""The models of the Brain on synthetic jobs: throughput, right-sizing, start values, resizing."""

from benchmarks.brain import one_job, rightsizing, start_values, throughput


def main() -> None:
    throughput.main()
    rightsizing.main()
    start_values.main()
    one_job.main()


if __name__ == "__main__":
    main()
