"""Draw the images of this sample from images/texts.json; they are checked in, so this is needed only to change them.

python samples/ocr_existing_pipeline/make_images.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

IMAGES = Path(__file__).resolve().parent / "images"
FONT_SIZE = 34
LINE_HEIGHT = 62
MARGIN = 40


@dataclass(frozen=True)
class Look:
    """How a card is drawn."""

    font: str
    ink: str
    paper: str
    angle_deg: float = 0.0


LOOKS = {
    "label.png": Look("DejaVuSans-Bold.ttf", "#1a1a1a", "#d9b07c", angle_deg=3.0),
    "note.png": Look("DejaVuSerif.ttf", "#24356b", "#fdf6c9", angle_deg=-2.0),
    "receipt.png": Look("DejaVuSansMono.ttf", "#222222", "#f4f4f0"),
    "sign.png": Look("DejaVuSans-Bold.ttf", "#ffffff", "#0b4f9e"),
}


def draw(lines: list[str], look: Look) -> Image.Image:
    """A card with these lines, on a grey table."""
    font = ImageFont.truetype(look.font, FONT_SIZE)
    width = 2 * MARGIN + max(round(font.getlength(line)) for line in lines)
    card = Image.new("RGB", (width, 2 * MARGIN + LINE_HEIGHT * len(lines)), look.paper)
    pen = ImageDraw.Draw(card)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN + LINE_HEIGHT * number), line, fill=look.ink, font=font)
    table = Image.new("RGB", (card.width + 80, card.height + 80), "#8a8f94")
    table.paste(card, (40, 40))
    return table.rotate(look.angle_deg, Image.Resampling.BICUBIC, fillcolor="#8a8f94")


def main() -> None:
    texts: dict[str, list[str]] = json.loads((IMAGES / "texts.json").read_text(encoding="utf-8"))
    for name, lines in texts.items():
        draw(lines, LOOKS[name]).save(IMAGES / name, optimize=True)


if __name__ == "__main__":
    main()
