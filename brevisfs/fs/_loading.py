"""What has to be so before pyfuse3 is loaded."""

from brevisfs._native import front

front.take_the_place_of_libfuse()
