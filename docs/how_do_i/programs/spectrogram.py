import torch

import maskgrad as mg

torch.manual_seed(0)
n_fft, hop, window = 16, 4, torch.hann_window(16)
lengths = torch.tensor([64, 37, 20])
signals = torch.randn(3, 64)
batch = mg.from_lengths(signals, lengths)

# each signal is reflected at its own ends, as torch.stft does with center=True
half, last = n_fft // 2, lengths[:, None] - 1
place = torch.arange(-half, 64 + half).abs().expand(3, -1)
place = torch.where(place > last, 2 * last - place, place).clamp(0, 63)
reflected = signals.gather(1, place)
values = torch.stft(reflected, n_fft, hop, window=window, center=False, return_complex=True)
spectrogram = mg.from_lengths(values.abs(), lengths // hop + 1, dim=2)
print("frames:", spectrogram.mask.any(1).sum(1).tolist())

alone = [
    torch.stft(s[:n], n_fft, hop, window=window, return_complex=True).abs()
    for s, n in zip(signals, lengths, strict=True)
]
print(
    "as of each signal alone:",
    all(torch.allclose(spectrogram.filled(0)[i, :, : a.shape[1]], a, atol=1e-5) for i, a in enumerate(alone)),
)

filled = torch.stft(batch.filled(0), n_fft, hop, window=window, return_complex=True).abs()
wrong = [int((filled[i, :, : a.shape[1]] - a).abs().amax(0).gt(1e-4).sum()) for i, a in enumerate(alone)]
print("of a batch filled with 0, wrong frames:", wrong)

mean, std = spectrogram.mean(2, keepdim=True), spectrogram.std(2, keepdim=True)
normalized = (spectrogram - mean) / std  # by frequency, over each signal's own frames
print("normalized over its frames:", bool(normalized.mean(2).filled(0).abs().max() < 1e-5))
