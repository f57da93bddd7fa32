import torch
from torch import nn
from torch.nn import functional as F

import maskgrad as mg

torch.manual_seed(0)
policy = nn.Linear(4, 5)
states = torch.randn(3, 4)
valid = torch.tensor([[1, 1, 0, 1, 1], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()  # the third state is final

logits = mg.masked(policy(states), valid)
probabilities = logits.softmax(-1)
print("probability of invalid actions:", probabilities.tolist()[0][2])
print("each sums to 1:", [round(p, 4) if p else p for p in probabilities.sum(-1).tolist()])

entropy = -(probabilities * logits.log_softmax(-1)).sum(-1)
print("no choice, no entropy:", abs(entropy.tolist()[1]) < 1e-6, "and of no action:", entropy.tolist()[2])

actions = torch.multinomial(probabilities.filled(0.0)[:2], 1)  # of the states that have actions
print("only valid actions are drawn:", bool(valid[:2].gather(1, actions).all()))

returns = mg.masked(torch.tensor([1.0, -1.0, 5.0]), valid.any(1))  # nothing was done in the final state
taken = F.pad(actions.flatten(), (0, 1))
chosen = logits.log_softmax(-1).gather(1, taken[:, None]).squeeze(1)
loss = -(chosen * returns).mean() - 0.01 * entropy.mean()
loss.backward()
print("the gradient is finite:", bool(policy.weight.grad.isfinite().all()))
print("the action that is invalid everywhere gets none:", not policy.weight.grad[2].any())

target = mg.masked(policy(states).detach(), valid).amax(-1)  # of Q-learning: the best valid action
print(
    "the best valid value of the final state:",
    target.tolist()[2],
    "in a target:",
    target.filled(0.0)[2].item(),
)
