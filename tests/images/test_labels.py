"""Classes from labels."""

import numpy as np

from carp.images.labels import number_classes


def test_numbers_keep_their_order_and_words_the_alphabet() -> None:
    assert number_classes(["10", "9", "9", "010"])[1] == ("9", "010", "10")
    assert number_classes(["0", "00", "1"])[1] == ("0", "00", "1")
    assert number_classes(["b", "10", "9"])[1] == ("10", "9", "b")
    numbers, _ = number_classes(["10", "9", "9", "010"])
    assert np.array_equal(numbers, [2, 0, 0, 1])


def test_a_number_of_any_length_is_a_class() -> None:
    """Python refuses to convert more than 4,300 digits."""
    assert number_classes(["9" * 5000, "1" + "0" * 5000, "7"])[1] == ("7", "9" * 5000, "1" + "0" * 5000)
