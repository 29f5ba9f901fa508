import torch

assert torch.cuda.is_available()
torch.manual_seed(1)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3, padding=1),
    torch.nn.BatchNorm2d(8),
    torch.nn.ReLU(),
    torch.nn.MaxPool2d(2),
    torch.nn.Flatten(),
    torch.nn.Linear(8 * 8 * 8, 10),
)
x, y = torch.randn(64, 3, 16, 16), torch.randint(10, (64,))


def train(device):
    net = torch.nn.Sequential(*(layer for layer in model)).to(device)
    net.load_state_dict(start)
    optimizer, losses = torch.optim.SGD(net.parameters(), lr=0.05), []
    for _ in range(10):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


start = {name: value.clone() for name, value in model.state_dict().items()}
there, here = train("cuda"), train("cpu")
torch.testing.assert_close(there, here, rtol=1e-3, atol=1e-3)
assert there[-1] < there[0]

q, k, v = (torch.randn(2, 4, 32, 16) for _ in range(3))
attention = torch.nn.functional.scaled_dot_product_attention
torch.testing.assert_close(attention(q.cuda(), k.cuda(), v.cuda()).cpu(), attention(q, k, v), rtol=1e-3, atol=1e-3)
lstm = torch.nn.LSTM(16, 24, batch_first=True)
expected = lstm(v[:, 0])[0].detach()
torch.testing.assert_close(lstm.cuda()(v[:, 0].cuda())[0].cpu().detach(), expected, rtol=1e-3, atol=1e-3)
with torch.autocast("cuda", dtype=torch.float16):
    half = torch.nn.functional.linear(x.flatten(1).cuda(), torch.ones(5, 768, device="cuda"))
assert half.dtype == torch.float16
torch.testing.assert_close(half.float().cpu(), x.flatten(1).sum(1, keepdim=True).expand(-1, 5), rtol=1e-2, atol=0.1)
print("right")
