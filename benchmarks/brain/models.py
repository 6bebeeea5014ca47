"""The models of the Brain on synthetic jobs: throughput, right-sizing of memory, start values."""

from benchmarks.brain import rightsizing, start_values, throughput


def main() -> None:
    throughput.main()
    rightsizing.main()
    start_values.main()


if __name__ == "__main__":
    main()
