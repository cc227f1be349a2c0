"""The drawing of how agreement grows with depth and with text."""

from xml.etree import ElementTree

import pytest

from scripts.scale_draft import HEIGHT, MARGIN, WIDTH, draw, order_left_out

SVG = "{http://www.w3.org/2000/svg}"


def point(depth: int, tokens: int, first: float) -> dict[str, float]:
    return {"depth": depth, "tokens": tokens, "first": first, "among_five": first + 0.2}


@pytest.fixture(scope="module")
def drawing() -> ElementTree.Element:
    found = {
        "depths_at_tokens": 120,
        "tokens_at_depth": 15,
        "depths": [point(depth, 120, share) for depth, share in ((15, 0.5), (4, 0.0), (8, 0.25))],
        "tokens": [point(15, tokens, share) for tokens, share in ((60, 0.4), (120, 0.5))],
    }
    return ElementTree.fromstring(draw(found))


def test_points_stand_where_their_numbers_are(drawing: ElementTree.Element) -> None:
    lines = [line.attrib["points"].split() for line in drawing.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [3, 3, 2, 2]
    left, right, bottom = MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN
    high = HEIGHT - 2 * MARGIN
    assert lines[0][0] == f"{left:.1f},{bottom:.1f}"  # the shallowest first, at no agreement
    assert lines[0][2] == f"{right:.1f},{bottom - high * 0.5:.1f}"
    assert lines[1][2] == f"{right:.1f},{bottom - high * 0.7:.1f}"
    assert lines[2][1] == f"{WIDTH + right:.1f},{bottom - high * 0.5:.1f}"


def test_the_order_is_read_from_a_log() -> None:
    log = (
        "2026-11-30 02:11:55 without layer 17: 0.168, 29 are left\n"
        "2026-11-30 02:12:14 without layer 4: 0.308, 28 are left\n"
        "2026-11-30 02:12:20 step 1, 0.002 M tokens: loss 4.1\n"
    )
    assert order_left_out(log) == [17, 4]


def test_every_point_says_its_share(drawing: ElementTree.Element) -> None:
    titles = [title.text for title in drawing.iter(f"{SVG}title")]
    assert len(titles) == 10
    assert titles[:3] == ["first choice 0.000", "first choice 0.250", "first choice 0.500"]
