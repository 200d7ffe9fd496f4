"""The version, once: the distribution takes it from here, and a checkout that is not installed has it too."""

VERSION = "0.1.0"
