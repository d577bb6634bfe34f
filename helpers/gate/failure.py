"""Why nothing could be judged, in words for the script's author."""

import re
from pathlib import Path

from helpers.launch import RankFailed
from helpers.launch.frames import short_name

_CASTS = """
the gate casts parameters and inputs to float64; for a script that casts by itself to a narrower
dtype there is --dtype float32"""


def told(error: Exception, dtype: str) -> str:
    """Return the error's text; a rank's without places in the gate, with a hint on dtypes."""
    if not isinstance(error, RankFailed):
        return str(error)
    text = _without_places_in(short_name(str(Path(__file__).parents[1])), str(error))
    is_cast = dtype == "float64" and re.search(r"dtype.*(Float|BFloat16|Half|float)\b", text)
    return text + (_CASTS if is_cast else "")


def _without_places_in(folder: str, text: str) -> str:
    place = rf"{re.escape(folder)}/\S+:\d+, in "
    lines = [line for line in text.splitlines() if not re.match(f"  {place}", line)]
    one = rf"; {place}[^;]*?(?=;| \(in \w+\)$|$)"  # of those in a line of where a rank stood
    return re.sub(
        rf" \({re.escape(folder)}/\S+:\d+\)", "", "\n".join(re.sub(one, "", x) for x in lines)
    )
