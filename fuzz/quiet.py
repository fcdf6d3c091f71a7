"""Silences what the libraries say on import and while lowering; importing this module is enough.

torch, torchao and executorch log and warn at every start and for every program, several lines each, of
nothing that a user of this project can act on. Whatever makes a stage fail is kept with the failure.
"""

import logging
import warnings

logging.disable(logging.ERROR)
warnings.simplefilter("ignore")
