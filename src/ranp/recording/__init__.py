"""Records of prunings for their reports: plain values, complete and compact.

A record holds everything that the report shows, so that it is made from files alone, without the
network and without torch.
"""

from ranp.recording.record import make_record, write_record
from ranp.recording.timelines import timeline_of

__all__ = ["make_record", "timeline_of", "write_record"]
