"""Features of shape (B, C, T) with lengths or a mask (B, 1, T): speech, spectrograms, sensors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.doctor.scripts.script import LENGTHS, Script, classes, floats, lasting, program


def spectrogram(**more):
    """(4, 3, 7), zero in the padding."""
    real = lasting()
    return {"x": floats(real, 3).transpose(1, 2).contiguous(), **more}, {"x": real[:, None]}


@program()
def mean_over_frames(wrong):
    (batch, real), head = spectrogram(x_lengths=torch.tensor(LENGTHS), y=classes()), nn.Linear(3, 5)

    def forward(x, x_lengths):
        x = (x + 1.0).tanh()
        seen = (torch.arange(x.shape[2]) < x_lengths[:, None])[:, None]
        if wrong:
            return head(x.mean(2))  # leak
        return head((x * seen).sum(2) / seen.sum(2))

    return Script(batch, forward, real=real)


@program()
def statistics_of_frames(wrong):
    (batch, real), head = spectrogram(mask=lasting()[:, None], y=classes()), nn.Linear(3, 5)

    def forward(x, mask):
        if wrong:
            return head(x.std(2))  # leak
        mean = (x * mask).sum(2, keepdim=True) / mask.sum(2, keepdim=True)
        return head((((x - mean) * mask) ** 2).sum(2) / mask.sum(2))

    return Script(batch, forward, real=real)


@program("padding-length")
def second_convolution_reads_the_bias_of_padding(wrong):
    (batch, real), head = spectrogram(x_mask=lasting()[:, None].float(), y=classes()), nn.Linear(6, 5)
    first, second = nn.Conv1d(3, 6, 3, padding=1), nn.Conv1d(6, 6, 3, padding=1)

    def forward(x, x_mask):
        hidden = first(x * x_mask).relu()
        if not wrong:
            hidden = hidden * x_mask
        hidden = second(hidden)  # leak
        return head((hidden * x_mask).sum(2) / x_mask.sum(2))

    return Script(batch, forward, real={} if wrong else real)


@program()
def batch_norm_over_frames(wrong):
    real = lasting()
    # padded with the smallest value of a log spectrogram
    batch = {"mel": torch.randn(4, 3, 7).masked_fill(~real[:, None], -11.5), "mel_lengths": list(LENGTHS)}
    norm, head = nn.BatchNorm1d(3), nn.Linear(3, 5)

    def forward(mel, mel_lengths):
        seen = (torch.arange(mel.shape[2]) < torch.tensor(mel_lengths)[:, None])[:, None]
        if wrong:
            mel = norm(mel)  # leak
        else:
            rows = seen[:, 0]
            mel = torch.zeros_like(mel.mT).masked_scatter(rows[..., None], norm(mel.mT[rows])).mT
        return head((mel * seen).sum(2) / seen.sum(2))

    return Script(batch | {"y": classes()}, forward, real={"mel": real[:, None]})


@program()
def ctc_of_padded_frames(wrong):
    real, net = lasting(9, 7, 6, 5), nn.Linear(3, 6)
    batch = {
        "waves": floats(real, 3).transpose(1, 2).contiguous(),
        "wave_lengths": torch.tensor([9, 7, 6, 5]),
        "targets": torch.randint(1, 6, (4, 3)),
        "target_lengths": torch.tensor([3, 2, 3, 1]),
    }

    def forward(waves, wave_lengths):
        return net(waves.permute(2, 0, 1)).log_softmax(-1)

    def loss(out, batch):
        lengths = torch.full((4,), 9) if wrong else batch["wave_lengths"]
        return F.ctc_loss(out, batch["targets"], lengths, batch["target_lengths"])  # leak

    return Script(batch, forward, loss, {"waves": real[:, None]}, loader=True)


@program()
def attention_over_frames_without_a_mask(wrong):
    (batch, real), scored, head = (
        spectrogram(frame_mask=lasting(), y=classes()),
        nn.Conv1d(3, 1, 1),
        nn.Linear(3, 5),
    )

    def forward(x, frame_mask):
        scores = scored(x).squeeze(1)
        if not wrong:
            scores = scores.masked_fill(~frame_mask, -1e9)
        weights = scores.softmax(-1)  # leak
        return head((x * weights[:, None]).sum(2))

    return Script(batch, forward, real=real)
