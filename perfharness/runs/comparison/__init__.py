"""Compare versions, and check limits: launches, suites, load tests, results of trtexec."""
