"""What docs/clients/sdks.md shows works as written, but for address, key and name."""

import pathlib
import re

import pytest
from support import *

PAGE = (pathlib.Path(__file__).parents[2] / "docs" / "clients" / "sdks.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))
def test_example(code, capsys):
    code = code.replace("http://127.0.0.1:8080", MODEL_URL).replace('"none"', repr(KEY)).replace('"martlet"', '"fledgling"')
    exec(code, {})
    assert capsys.readouterr().out.strip()
