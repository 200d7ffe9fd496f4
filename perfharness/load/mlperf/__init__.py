"""MLPerf LoadGen, the library of MLCommons (`mlperf_loadgen`), over any backend: `perfharness mlperf`."""
