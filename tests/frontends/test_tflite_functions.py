"""Polynomials for functions that NNAPI has no operation for, by the functions themselves in double precision."""

import numpy as np
from numpy.polynomial.polynomial import polyval
from scipy.special import erfcx

from nnhal.frontends.common.functions import ATAN, ERFC
from nnhal.frontends.tflite.functions import MOST_BITS


def test_the_scaled_complement_of_the_error_function_is_t_times_a_polynomial():
    z = np.concatenate([np.linspace(0, 20, 4001), np.geomspace(20, 1e6, 1000)])
    t = 1 / (1 + z / 2)
    np.testing.assert_allclose(t * polyval(t, ERFC), erfcx(z), rtol=1.8e-7)


def test_the_angle_of_a_tangent_up_to_1_is_it_times_a_polynomial_of_its_square():
    s = np.linspace(0, 1, 4001)
    np.testing.assert_allclose(s * polyval(s * s, ATAN), np.arctan(s), rtol=1.2e-7)


def test_fake_quantise_has_the_bits_of_tensorflow():
    assert MOST_BITS == 16
