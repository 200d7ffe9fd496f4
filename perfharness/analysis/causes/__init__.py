"""What limits each stage of a process: fourteen causes (docs/guides/causes.md)."""

from perfharness.analysis.causes.diagnose import Pass as Pass
from perfharness.analysis.causes.diagnose import diagnose as diagnose
from perfharness.analysis.causes.results import Causes as Causes
from perfharness.analysis.causes.results import Code as Code
