"""Constructors: what they accept, what they share, what they refuse and in which words."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import maskgrad as mg
from tests.poison import assert_entries, gradient, inf, leaf, nan, on


class TestMasked:
    def test_data_and_mask_are_shared(self) -> None:
        data, mask = torch.tensor([1.0, nan]), on(1, 0)
        x = mg.masked(data, mask)
        assert x.mask is mask
        data[0] = 5.0
        assert_entries(x, [5.0, None])

    @pytest.mark.parametrize("mask", [on([1, 0, 1]), on(0), on([1], [0]), torch.tensor(True)])
    def test_a_mask_broadcasts_without_a_copy(self, mask: torch.Tensor) -> None:
        x = mg.masked(torch.full((2, 3), inf), mask)
        assert x.mask.shape == (2, 3)
        assert x.mask.data_ptr() == mask.data_ptr()
        assert torch.equal(x.mask, mask.expand(2, 3))

    def test_without_a_mask_everything_is_specified(self) -> None:
        assert_entries(mg.masked(torch.ones(2, 3)), [[1.0] * 3] * 2)
        assert mg.masked(torch.ones(2, 3)).mask.stride() == (0, 0)

    def test_a_masked_tensor_keeps_its_own_mask_too(self) -> None:
        x = mg.masked(torch.tensor([1.0, nan, inf]), on(1, 0, 1))
        assert mg.masked(x) is x
        assert_entries(mg.masked(x, on(1, 1, 0)), [1.0, None, None])
        assert_entries(x, [1.0, None, inf])

    @pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int32, torch.bfloat16, torch.complex64])
    def test_data_of_any_dtype(self, dtype: torch.dtype) -> None:
        assert mg.masked(torch.ones(2, dtype=dtype), on(1, 0)).dtype == dtype

    @pytest.mark.parametrize("mask", [[True, False], np.array([True, False]), True])
    def test_a_mask_must_be_a_tensor(self, mask: Any) -> None:
        with pytest.raises(
            TypeError, match=rf"mask must be a Boolean .* found {type(mask).__name__}; .*as_tensor"
        ):
            mg.masked(torch.zeros(2), mask)

    @pytest.mark.parametrize(("data", "mask"), [((3,), (2,)), ((3,), (2, 3)), ((), (1,)), ((2, 3), (2,))])
    def test_a_mask_must_broadcast_to_the_data(self, data: tuple[int, ...], mask: tuple[int, ...]) -> None:
        message = re.escape(f"found a mask of shape {mask} for data of shape {data}")
        with pytest.raises(ValueError, match=message):
            mg.masked(torch.zeros(data), torch.ones(mask, dtype=torch.bool))

    def test_a_mask_must_be_on_the_device_of_the_data(self) -> None:
        with pytest.raises(
            ValueError, match=r"mask must be on the device of the data, meta, found cpu; use mask.to"
        ):
            mg.masked(torch.zeros(3, device="meta"), on(1, 0, 1))

    def test_a_mask_must_be_strided(self) -> None:
        with pytest.raises(TypeError, match=r"mask must be a strided tensor, found layout torch.sparse_coo"):
            mg.masked(torch.zeros(2), on(1, 0).to_sparse())

    @pytest.mark.parametrize("data", [[1.0, 2.0], np.zeros(2), 1.0, None])
    def test_data_must_be_a_tensor(self, data: Any) -> None:
        with pytest.raises(
            TypeError, match=rf"data must be a strided torch.Tensor, found {type(data).__name__}; .*as_tensor"
        ):
            mg.masked(data, on(1, 0))

    def test_data_must_be_strided(self) -> None:
        with pytest.raises(
            TypeError, match=r"data must be a strided torch.Tensor, found layout torch.sparse_coo; use"
        ):
            mg.masked(torch.eye(2).to_sparse(), on([1, 0], [0, 1]))

    def test_the_gradient_is_zero_under_the_mask(self) -> None:
        data = leaf(1.0, nan, inf, 1e300)
        assert gradient(mg.masked(data, on(1, 0, 0, 1)) * 2, data).tolist() == [2.0, 0.0, 0.0, 2.0]

    def test_empty_and_scalar_data(self) -> None:
        assert mg.masked(torch.zeros(0, 3), torch.zeros(0, 1).bool()).shape == (0, 3)
        assert_entries(mg.masked(torch.tensor(nan), torch.tensor(False)), None)

    def test_data_on_the_meta_device(self) -> None:
        x = mg.masked(torch.zeros(3, device="meta"), on(1, 0, 1).to("meta"))
        assert (x + 1).device.type == "meta"


class TestFromNan:
    def test_nan_is_unspecified_and_infinity_is_not(self) -> None:
        data = leaf(1.0, nan, inf)
        x = mg.from_nan(data)
        assert_entries(x, [1.0, None, inf])
        assert gradient(x, data).tolist() == [1.0, 0.0, 1.0]

    def test_integers_are_fully_specified(self) -> None:
        assert_entries(mg.from_nan(torch.tensor([1, 2])), [1, 2], dtype=torch.int64)

    def test_a_complex_number_is_nan_if_a_part_is(self) -> None:
        x = mg.from_nan(torch.tensor([complex(nan, 1), complex(1, nan), 2 + 1j, complex(inf, 0)]))
        assert x.mask.tolist() == [False, False, True, True]

    def test_refusals(self) -> None:
        with pytest.raises(TypeError, match=r"data must be a strided torch.Tensor, found list"):
            mg.from_nan([nan, 1.0])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"strided"):
            mg.from_nan(torch.eye(2).to_sparse())


class TestFromLengths:
    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
    def test_lengths_count_from_the_front(self, dtype: torch.dtype) -> None:
        x = mg.from_lengths(torch.full((3, 2), inf), torch.tensor([2, 0, 1], dtype=dtype))
        assert x.mask.tolist() == [[True, True], [False, False], [True, False]]

    @pytest.mark.parametrize("dim", [2, -1])
    def test_another_padded_dimension(self, dim: int) -> None:
        x = mg.from_lengths(torch.zeros(2, 4, 3), torch.tensor([3, 1]), dim=dim)
        expected = torch.tensor([[True, True, True], [True, False, False]])
        assert torch.equal(x.mask, expected[:, None, :].expand(2, 4, 3))
        assert x.mask.stride(1) == 0

    def test_the_gradient_is_zero_in_the_padding(self) -> None:
        data = leaf([1.0, 2.0, 3.0], [4.0, nan, inf])
        x = mg.from_lengths(data, torch.tensor([3, 1]))
        assert_entries(x.mean(1), [2.0, 4.0])
        assert_entries(gradient(x.mean(1), data), [[1 / 3] * 3, [1.0, 0.0, 0.0]])

    def test_an_empty_batch(self) -> None:
        assert mg.from_lengths(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)

    @pytest.mark.parametrize("lengths", [[2, 1], torch.tensor([2.0, 1.0]), torch.tensor([1j, 1])])
    def test_lengths_must_be_an_integer_tensor(self, lengths: Any) -> None:
        with pytest.raises(
            TypeError, match=r"lengths must be an integer tensor, found .*; use (torch.tensor|lengths)"
        ):
            mg.from_lengths(torch.zeros(2, 3), lengths)

    @pytest.mark.parametrize(("lengths", "found"), [([1, 4], "1 to 4"), ([-1, 2], "-1 to 2")])
    def test_lengths_must_fit(self, lengths: list[int], found: str) -> None:
        with pytest.raises(
            ValueError, match=rf"lengths must lie between 0 and 3, the size of dim 1, found {found}"
        ):
            mg.from_lengths(torch.zeros(2, 3), torch.tensor(lengths))

    @pytest.mark.parametrize("shape", [(3,), (2, 1), ()])
    def test_one_length_for_each_sequence(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=rf"shape \(B,\) = \(2,\).*found {re.escape(str(shape))}"):
            mg.from_lengths(torch.zeros(2, 3), torch.ones(shape, dtype=torch.int64))

    @pytest.mark.parametrize("dim", [0, -2, 2, -3])
    def test_the_padded_dimension_is_not_the_batch(self, dim: int) -> None:
        with pytest.raises(ValueError, match=rf"other than 0 .the batch., found {dim} for 2 dimensions"):
            mg.from_lengths(torch.zeros(2, 3), torch.tensor([1, 2]), dim=dim)

    def test_data_without_a_second_dimension(self) -> None:
        with pytest.raises(ValueError, match=r"one length for each sequence of data \(2,\)"):
            mg.from_lengths(torch.zeros(2), torch.tensor([1, 2]))

    def test_lengths_must_be_on_the_device_of_the_data(self) -> None:
        with pytest.raises(ValueError, match=r"lengths must be on the device of data, cpu, found meta; use"):
            mg.from_lengths(torch.zeros(2, 3), torch.tensor([1, 2], device="meta"))


class TestFromNumpy:
    def test_numpys_true_means_missing(self) -> None:
        assert_entries(
            mg.from_numpy(np.ma.array([1.0, nan, 3.0], mask=[False, True, False])), [1.0, None, 3.0]
        )

    @pytest.mark.parametrize(
        "array", [np.array([1, 2]), np.ma.array([1, 2]), np.ma.array([1, 2], mask=False)]
    )
    def test_no_mask_means_fully_specified(self, array: Any) -> None:
        assert_entries(mg.from_numpy(array), [1, 2], dtype=torch.int64)

    def test_memory_is_shared(self) -> None:
        array = np.ma.array([1.0, nan], mask=[False, True])
        x = mg.from_numpy(array)
        array[0] = 7.0
        assert_entries(x, [7.0, None])

    def test_scalars(self) -> None:
        assert_entries(mg.from_numpy(np.ma.array(nan, mask=True)), None)
        assert_entries(mg.from_numpy(np.array(2.0)), 2.0, dtype=torch.float64)

    def test_there_and_back(self) -> None:
        array = np.ma.array([[1.0, nan], [inf, 4.0]], mask=[[False, True], [True, False]])
        back = mg.from_numpy(array).to_numpy()
        assert np.array_equal(back.mask, array.mask)
        assert np.array_equal(back.filled(0), array.filled(0))

    def test_refusals(self) -> None:
        with pytest.raises(
            TypeError, match=r"array must be a numpy array, found Tensor; use mg.masked for tensors"
        ):
            mg.from_numpy(torch.zeros(2))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"array must contain numbers or Booleans"):
            mg.from_numpy(np.array(["a"]))
