"""The smallest pipeline: two stages that sleep, so that the right answer is known.

perfharness launch -np 2 -w 1 -o out samples/toy_pipeline.py
"""

import time

from perfharness import PerfRecorder, get_default_arg_parser, parse_validate_default_args


def main() -> None:
    parser = get_default_arg_parser("toy_pipeline", parser_type="minimal")
    parser.add_argument("--batches", type=int, default=3, help="number of batches, of one item each")
    parser.add_argument("--stage-ms", type=float, default=300.0, help="milliseconds that each of the two stages sleeps")
    args = parse_validate_default_args(parser)
    perf = PerfRecorder("toy_pipeline", args)

    with perf.range("pipeline"):
        for i in range(args.batches):
            with perf.batch(i, total_items=1):
                with perf.range("stage_1"):
                    time.sleep(args.stage_ms / 1e3)
                with perf.range("stage_2"):
                    time.sleep(args.stage_ms / 1e3)
    perf.finalize()


if __name__ == "__main__":
    main()
