"""An autoencoder of movies: reads the ratings that a movie has, and predicts those it has not.

This file is an example of :class:`maskgrad.MaskedTensor`: a matrix that is almost empty goes through ordinary
``torch.nn`` modules as input and as target. Shapes: B movies in a batch, M movies, U users, N ratings.

Source: Sedhain, Menon, Sanner and Xie, "AutoRec: autoencoders meet collaborative filtering", WWW 2015.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import maskgrad as mg

from .baseline import BiasBaseline
from .processes import ALONE, Share
from .ratings import Ratings

__all__ = ["ItemAutoencoder", "ItemAutoencoderLearner", "forget"]

HIDDEN = 100
BATCH_SIZE = 256
LEARNING_RATE = 2e-3
LEARNING_RATE_DECAY = 0.92  # each epoch
WEIGHT_DECAY = 2e-4
#: share of its input that the network is not shown while it learns
FORGOTTEN = 0.5


class ItemAutoencoder(nn.Sequential):
    """Maps the ratings of movies (B, U), some specified, to predicted ratings (B, U) of all users.

    The first layer sums over the users who rated the movie. A movie that nobody rated comes out unspecified.
    """

    def __init__(self, num_users: int, hidden: int = HIDDEN) -> None:
        decoder = nn.Linear(hidden, num_users)
        with torch.no_grad():  # begin close to "no difference from the baseline"
            decoder.weight.mul_(0.1)
            decoder.bias.zero_()
        super().__init__(nn.Linear(num_users, hidden), nn.Sigmoid(), decoder)


def forget(ratings: mg.MaskedTensor, share: float) -> mg.MaskedTensor:
    """Leave out a random ``share`` of the specified entries, and scale the others to keep the expected sum."""
    values = ratings.filled(0.0) / (1 - share)
    return mg.masked(values, ratings.mask & (torch.rand_like(values) >= share))


class ItemAutoencoderLearner:
    """An :class:`ItemAutoencoder` of what the baseline leaves unexplained, and what trains it."""

    def __init__(self, training: Ratings, baseline: BiasBaseline, share: Share = ALONE) -> None:
        self.baseline, self.share = baseline, share
        unexplained = training.stars - baseline.predict(training.users, training.movies)
        self.ratings_MU = training.matrix(unexplained)
        self.rated = torch.unique(training.movies)
        self.module = ItemAutoencoder(training.num_users).to(training.stars.device)
        # Its gradients are dense, so any optimizer will do.
        self.optimizer = torch.optim.Adam(
            self.module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        self.schedule = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, LEARNING_RATE_DECAY)

    def train_epoch(self) -> None:
        """See every movie that has a rating once, in random order."""
        order = torch.randperm(len(self.rated)).to(self.rated.device)
        for index in order.split(BATCH_SIZE):
            target = self.ratings_MU[self.rated[index]]
            part = self.share.part(len(index))
            # All processes forget the same, whoever looks at it.
            output = self.module(forget(target, FORGOTTEN)[part])
            with self.share.losses():
                # Over the ratings that exist: 98 % of `target` takes no part.
                # PyTorch's annotations know of no other type than Tensor.
                loss = F.mse_loss(output, target[part])
            self.optimizer.zero_grad()
            loss.backward()
            self.share.average_gradients(self.module)
            self.optimizer.step()
        self.schedule.step()

    @torch.no_grad()
    def predict(self, users: Tensor, movies: Tensor) -> Tensor:
        """Stars for (N,) pairs of user and movie; the baseline's where the movie has no rating to read."""
        difference_MU: Tensor = self.module(self.ratings_MU).filled(0.0)
        return self.baseline.predict(users, movies) + difference_MU[movies, users]
