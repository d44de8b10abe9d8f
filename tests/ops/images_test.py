"""What the images hold, and how soon a server in one is ready.

images_test.py BIN_DIR                 images of the programs in BIN_DIR, laid out as deploy/Dockerfile does
images_test.py BIN_DIR --dockerfile    images as deploy/Dockerfile builds them, from the sources
Needs podman and root.
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from harness import image_suite


class Image(image_suite.Image):
    pass


if __name__ == "__main__":
    sys.exit(image_suite.main())
