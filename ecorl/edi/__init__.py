"""The EDI matrix: joules per output token by stage and device (Definition 1, Eq. 4 and 5).

    EDI(stage, device) = mean power x time / output tokens                      (Eq. 4)
    E <- (1 - alpha) E + alpha E_new, alpha = 0.05, after a profiling phase     (Eq. 5)

During the profiling phase a cell is the running mean of its readings, so that the first reading
does not weigh for twenty iterations. A missing reading touches no cell; where only its energy is
missing, its time is kept beside the cells (`TimeCell`). Readings of different provenance go to
different cells: a measured figure and a modelled one are never averaged. So do readings of
different models of one stage, and of different ways to run it (its variants, such as the numeric
format of a training step), for these have prices of their own.
"""

from ecorl.edi.matrix import EdiCell, EdiMatrix, edi, edi_from_energy, edi_reading
from ecorl.edi.times import CellKey, TimeCell

__all__ = ["CellKey", "EdiCell", "EdiMatrix", "TimeCell", "edi", "edi_from_energy", "edi_reading"]
