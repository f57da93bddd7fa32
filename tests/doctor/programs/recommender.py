"""Ratings are predicted from users, films and each user's history, a padded bag of films; tables are sparse.

After the two-tower models of TorchRec's examples, in plain PyTorch.
"""

import torch
from torch import nn

USERS, FILMS, GENRES, PAD = 12, 15, 4, 0
HISTORIES = {1: [3, 4, 9], 4: [7], 5: [2, 8, 10, 11, 12], 9: [], 11: [5, 6]}


def ratings(seed=0):
    """Who saw what, and how it was liked; some said how they liked the music, most did not (NaN)."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for user, seen in HISTORIES.items():
        film = int(torch.randint(1, FILMS, (1,), generator=draw))
        stars = 1 + 4 * torch.rand(2, generator=draw)
        if user % 2 == 0:
            stars[1] = float("nan")
        rows.append((user, film, film % GENRES, seen, stars))
    return rows


def collate(rows):
    """Histories padded with film 0, which does not exist."""
    longest = max(len(seen) for *_, seen, _ in rows)
    history = torch.tensor([seen + [PAD] * (longest - len(seen)) for *_, seen, _ in rows])
    return {
        "user": torch.tensor([row[0] for row in rows]),
        "film": torch.tensor([row[1] for row in rows]),
        "genre": torch.tensor([row[2] for row in rows]),
        "history": history,
        "history_mask": history != PAD,
        "stars": torch.stack([row[4] for row in rows]),
    }


class Tables(nn.Module):
    """Users, films and their biases: large in earnest, with a few rows in each batch."""

    def __init__(self, width):
        super().__init__()
        self.users = nn.Embedding(USERS, width, sparse=True)
        self.films = nn.Embedding(FILMS, width, sparse=True, padding_idx=PAD)
        self.user_bias = nn.Embedding(USERS, 1, sparse=True)
        self.film_bias = nn.Embedding(FILMS, 1, sparse=True)
        for table in (self.users, self.films):
            nn.init.normal_(table.weight, std=0.3)


class Network(nn.Module):
    """What is small and dense: genres, a weighing of the history, a network that mixes everything."""

    def __init__(self, width):
        super().__init__()
        self.genres = nn.Embedding(GENRES, width)
        self.weigh = nn.Bilinear(width, width, 1)
        self.mix = nn.Sequential(
            nn.Linear(4 * width, 2 * width), nn.LayerNorm(2 * width), nn.ReLU(), nn.Linear(2 * width, 2)
        )

    def interest(self, film, history, mask):
        """The history seen from a film: films like it weigh more; no history, no interest."""
        scores = self.weigh(history, film[:, None].expand_as(history).contiguous()).squeeze(-1)
        weights = scores.masked_fill(~mask, -1e9).softmax(-1).masked_fill(~mask, 0)
        return (weights[..., None] * history.masked_fill(~mask[..., None], 0)).sum(1)


class Recommender(nn.Module):
    """Two predictions for each user and film: stars for the film and for its music."""

    def __init__(self, width=4):
        super().__init__()
        self.tables, self.network = Tables(width), Network(width)
        self.mean = nn.Parameter(torch.tensor([3.0, 3.0]))

    def forward(self, batch):
        tables, network = self.tables, self.network
        user, film = tables.users(batch["user"]), tables.films(batch["film"])
        history = tables.films(batch["history"])
        interest = network.interest(film, history, batch["history_mask"])
        bias = tables.user_bias(batch["user"]) + tables.film_bias(batch["film"])
        features = torch.cat([user * film, interest, film, network.genres(batch["genre"])], -1)
        return self.mean + bias + network.mix(features)


model = Recommender()
batch = collate(ratings())


def step(batch):
    """Squared error over the stars that were given, and a penalty on the rows that were looked up."""
    predicted, given = model(batch), ~batch["stars"].isnan()
    stars = torch.where(given, batch["stars"], 0.0)
    error = (predicted - stars).masked_fill(~given, 0).square().sum() / given.sum()
    rows = model.tables.users(batch["user"]).square().sum() + model.tables.films(batch["film"]).square().sum()
    return error + 1e-3 * rows / len(given)


def train(steps=3):
    """Two optimizers: one for tables, which takes sparse gradients, one for the rest."""
    tables = torch.optim.SparseAdam(list(model.tables.parameters()), lr=1e-2)
    rest = [model.mean, *model.network.parameters()]
    network = torch.optim.AdamW(rest, lr=1e-2)
    for _ in range(steps):
        for optimizer in (tables, network):
            optimizer.zero_grad()
        step(batch).backward()
        nn.utils.clip_grad_norm_(rest, 1.0)
        for optimizer in (tables, network):
            optimizer.step()
