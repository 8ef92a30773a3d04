"""One mistake in a cell with a model of a library, and what a finding must say about it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.models.zoo import GRAPHS, SETUP


@dataclass(frozen=True)
class Mistake:
    """A cell that goes wrong at the line marked with ``# <-``."""

    setup: str
    cell: str
    operation: str
    """Its last part."""
    values: tuple[int | float, ...]
    """Distinct bad values; as text where NaN."""
    allowed: tuple[int | None, int | None]
    yours: str | None
    """What must be named: the operand as written, or the tensor that it was made from."""
    places: tuple[tuple[int, ...], ...] = ()
    """Positions of the bad values in it."""
    assertion: str = ""
    """What the device prints."""
    library: str = ""
    """Part of the library's line."""
    hint: str = ""

    @property
    def line(self) -> int:
        lines = self.cell.splitlines()
        return next(n for n, text in enumerate(lines, 1) if "# <-" in text)


LOOKUP = "srcIndex < srcSelectDimSize"
LOSS = "t >= 0 && t < n_classes"
INDEX = "index out of bounds"
SCATTER = "scatter gather kernel index out of bounds"
CHANCES = "probability tensor contains either"

MISTAKES = {
    "bert: id": Mistake(
        SETUP,
        """\
model = small_bert().cuda()
batch = {"input_ids": ids, "attention_mask": ones, "labels": torch.tensor([0, 2])}
batch["input_ids"][1, 3] = 100
batch = {k: v.cuda() for k, v in batch.items()}
loss = model(**batch).loss  # <-
loss.backward()""",
        "embedding",
        (100,),
        (0, 99),
        'batch["input_ids"]',
        ((1, 3),),
        LOOKUP,
        "self.word_embeddings(input_ids)",
        "Off by one",
    ),
    "bert: id in a tokenizer's batch": Mistake(
        SETUP,
        """\
from transformers import BatchEncoding
encoding = BatchEncoding({"input_ids": ids.clone(), "attention_mask": ones})
encoding["input_ids"][0, 0] = 30000
encoding = encoding.to("cuda")
model = small_bert().to("cuda")
with torch.no_grad():
    out = model(input_ids=encoding.input_ids, attention_mask=encoding["attention_mask"])  # <-""",
        "embedding",
        (30000,),
        (0, 99),
        "encoding.input_ids",
        ((0, 0),),
        LOOKUP,
        "self.word_embeddings(input_ids)",
        "needs 30001",
    ),
    "bert: token type": Mistake(
        SETUP,
        """\
model = small_bert().cuda()
inputs = {"input_ids": ids.cuda(), "token_type_ids": torch.zeros_like(ids).cuda()}
inputs["token_type_ids"][0, 5:] = 2
out = model(**inputs)  # <-""",
        "embedding",
        (2,),
        (0, 1),
        'inputs["token_type_ids"]',
        ((0, 5), (0, 6), (0, 7)),
        LOOKUP,
        "self.token_type_embeddings(token_type_ids)",
    ),
    "bert: position": Mistake(
        SETUP,
        """\
model = small_bert().cuda()
places = torch.arange(2, 34, 4, device="cuda").expand(2, 8) + 2
out = model(ids.cuda(), position_ids=places)  # <-""",
        "gather",
        (32,),
        (0, 31),
        "places",
        ((0, 7), (1, 7)),
        SCATTER,
        "torch.gather(",
        "they need 33 places, and there are 32",
    ),
    "bert: label": Mistake(
        SETUP,
        """\
model = small_bert().cuda()
labels = torch.tensor([1, 3])
out = model(input_ids=ids.cuda(), labels=labels.cuda())  # <-""",
        "cross_entropy",
        (3,),
        (0, 2),
        "labels.cuda()",
        ((1,),),
        LOSS,
        "loss_fct(logits.view(-1, self.num_labels), labels.view(-1))",
        "Subtract 1",
    ),
    "gpt2: sequence too long": Mistake(
        SETUP,
        """\
model = small_gpt2().cuda()
text = torch.randint(3, 100, (1, 40)).cuda()
out = model(text, labels=text)  # <-""",
        "embedding",
        (32, 33, 34, 35, 36, 37, 38, 39),
        (0, 31),
        None,
        (),
        LOOKUP,
        "self.wpe(position_ids)",
        "they need 40 places, and there are 32",
    ),
    "gpt2: too many new tokens": Mistake(
        SETUP,
        """\
model = small_gpt2().cuda()
prompt = torch.randint(3, 100, (2, 30)).cuda()
out = model.generate(  # <-
    prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, min_new_tokens=5)""",
        "embedding",
        (32,),
        (0, 31),
        None,
        (),
        LOOKUP,
        "self.wpe(position_ids)",
        "they need 33 places, and there are 32",
    ),
    "gpt2: id of a prompt": Mistake(
        SETUP,
        """\
model = small_gpt2().cuda()
prompt = ids.clone()
prompt[0, 2] = 101
mask = ones.cuda()
out = model.generate(prompt.cuda(), attention_mask=mask, max_new_tokens=5, do_sample=True)  # <-""",
        "embedding",
        (101,),
        (0, 99),
        "prompt.cuda()",
        ((0, 2),),
        LOOKUP,
        "self.wte(input_ids)",
        "needs 102",
    ),
    "gpt2: label of padding": Mistake(
        SETUP,
        """\
model = small_gpt2().cuda()
ids = ids.cuda()
labels = ids.clone()
labels[1, 6:] = -1
loss = model(input_ids=ids, labels=labels).loss  # <-""",
        "cross_entropy",
        (-1,),
        (0, 99),
        "labels",
        ((1, 6), (1, 7)),
        LOSS,
        "cross_entropy",
        "ignore_index is -100",
    ),
    "llama: label": Mistake(
        SETUP,
        """\
model = small_llama().cuda()
batch = {"input_ids": ids.cuda(), "labels": ids.cuda().clone()}
batch["labels"][1, 4] = 100
out = model(**batch)  # <-""",
        "cross_entropy",
        (100,),
        (0, 99),
        'batch["labels"]',
        ((1, 4),),
        LOSS,
        "cross_entropy",
    ),
    "llama: NaN while sampling": Mistake(
        SETUP,
        """\
model = small_llama().cuda()
with torch.no_grad():
    model.lm_head.weight[5] = float("nan")
mask = ones.cuda()
out = model.generate(ids.cuda(), attention_mask=mask, max_new_tokens=5, do_sample=True)  # <-""",
        "multinomial",
        ("nan",),
        (0, None),
        None,
        (),
        CHANCES,
        "torch.multinomial(probs, num_samples=1)",
        "first NaN",
    ),
    "t5: decoder id from a label": Mistake(
        SETUP,
        """\
model = small_t5().cuda()
batch = {"input_ids": ids.cuda(), "labels": ids.cuda().clone()}
batch["labels"][1, 4] = 100
loss = model(**batch).loss  # <-""",
        "embedding",
        (100,),
        (0, 99),
        'batch["labels"]',
        ((1, 4),),
        LOOKUP,
        "self.embed_tokens(input_ids)",
    ),
    "t5: last label": Mistake(
        SETUP,
        """\
model = small_t5().cuda()
labels = ids.clone()
labels[1, 7] = 100
loss = model(input_ids=ids.cuda(), labels=labels.cuda()).loss  # <-""",
        "cross_entropy",
        (100,),
        (0, 99),
        "labels.cuda()",
        ((1, 7),),
        LOSS,
        "labels.view(-1)",
        "Off by one",
    ),
    "whisper: label": Mistake(
        SETUP,
        """\
model = small_whisper().cuda()
labels = ids.clone()
labels[0, 7] = 120
out = model(input_features=sound.cuda(), labels=labels.cuda())  # <-""",
        "cross_entropy",
        (120,),
        (0, 99),
        "labels.cuda()",
        ((0, 7),),
        LOSS,
        "labels.reshape(-1)",
    ),
    "whisper: decoder too long": Mistake(
        SETUP,
        """\
model = small_whisper().cuda()
words = torch.randint(3, 100, (2, 22)).cuda()
out = model(input_features=sound.cuda(), decoder_input_ids=words)  # <-""",
        "x[index]",
        (20, 21),
        (-20, 19),
        None,
        (),
        INDEX,
        "self.weight[position_ids]",
        "they need 22 places, and there are 20",
    ),
    "vit: label": Mistake(
        SETUP,
        """\
model = small_vit().cuda()
inputs = {"pixel_values": pictures.cuda(), "labels": torch.tensor([1, 5]).cuda()}
for epoch in range(2):
    loss = model(**inputs).loss  # <-
    loss.backward()""",
        "cross_entropy",
        (5,),
        (0, 4),
        'inputs["labels"]',
        ((1,),),
        LOSS,
        "cross_entropy",
    ),
    "bert: label in a loop in a function": Mistake(
        SETUP,
        """\
from torch.utils.data import DataLoader

def train_step(model, batch, optimizer):
    batch = {k: v.to("cuda") for k, v in batch.items()}
    outputs = model(**batch)
    outputs.loss.backward()
    optimizer.step()

rows = [{"input_ids": ids[0], "labels": torch.tensor(i % 4)} for i in range(8)]
model = small_bert().to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for batch in DataLoader(rows, batch_size=4):
    train_step(model, batch, optimizer)  # <-""",
        "cross_entropy",
        (3,),
        (0, 2),
        'batch["labels"]',
        ((3,),),
        LOSS,
        "labels.view(-1)",
    ),
    "bert: id moved on the way": Mistake(
        SETUP,
        """\
model = torch.compile(small_bert().cuda())
inputs = {"input_ids": ids, "attention_mask": ones}
ids[1, 1] = 222
out = model(**{name: value.cuda() for name, value in inputs.items()})  # <-""",
        "embedding",
        (222,),
        (0, 99),
        "model(input_ids=...)",
        ((1, 1),),
        LOOKUP,
        "self.word_embeddings(input_ids)",
    ),
    "bert: id under DataParallel": Mistake(
        SETUP,
        """\
model = torch.nn.DataParallel(small_bert()).cuda()
ids[0, 7] = -1
logits = model(ids.cuda(), attention_mask=ones.cuda()).logits  # <-""",
        "embedding",
        (-1,),
        (0, 99),
        "ids.cuda()",
        ((0, 7),),
        LOOKUP,
        "self.word_embeddings(input_ids)",
        "Negative ids",
    ),
    "gpt2: label in a trainer": Mistake(
        SETUP,
        """\
class Trainer:
    def __init__(self):
        self.model = small_gpt2().cuda()
        self.batch = {"input_ids": ids.cuda(), "labels": ids.cuda().clone()}
        self.batch["labels"][0, 5] = 1000

    def train(self):
        return self.compute_loss(self.model, self.batch)

    def compute_loss(self, model, inputs):
        return model(**inputs).loss

loss = Trainer().train()  # <-""",
        "cross_entropy",
        (1000,),
        (0, 99),
        'inputs["labels"]',
        ((0, 5),),
        LOSS,
        "cross_entropy",
        "needs 1001",
    ),
    "graph: edge between two kinds of nodes": Mistake(
        GRAPHS,
        """\
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv
data = HeteroData()
data["author"].x, data["paper"].x = torch.randn(3, 3), torch.randn(4, 3)
data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 1, 3], [3, 2, 0]])
data = data.to("cuda")
conv = HeteroConv({("author", "wrote", "paper"): SAGEConv((3, 3), 2)}).cuda()
out = conv(data.x_dict, data.edge_index_dict)  # <-""",
        "index_select",
        (3,),
        (0, 2),
        "data.edge_index_dict[('author', 'wrote', 'paper')]",
        ((0, 2),),
        LOOKUP,
    ),
    "graph: pair of nodes": Mistake(
        GRAPHS,
        """\
data = graphs[0].to("cuda")
z = GCNConv(3, 2).cuda()(data.x, data.edge_index)
pairs = torch.tensor([[0, 1], [2, 9]]).cuda()
score = (z[pairs[0]] * z[pairs[1]]).sum(-1)  # <-""",
        "x[index]",
        (9,),
        (-4, 3),
        "pairs[1]",
        ((1,),),
        INDEX,
    ),
    "vision and text: more image tokens than features": Mistake(
        SETUP,
        """\
words = small_llama().cuda().get_input_embeddings()(ids.cuda())
is_image = (torch.arange(8) < 3).expand(2, 8).cuda()
features = torch.randn(5, 32).cuda()
mask = is_image.unsqueeze(-1).expand_as(words)
words = words.masked_scatter(mask, features)  # <-""",
        "masked_scatter_",
        (1,),
        (None, None),
        "mask",
        tuple((1, 2, n) for n in range(20)),
        "totalElements <= srcSize",
    ),
    "graph: edge to a node that is not there": Mistake(
        GRAPHS,
        """\
data = Data(x=x, edge_index=edge_index.clone()).to("cuda")
data.edge_index[1, 2] = 4
conv = GCNConv(3, 2).cuda()
h = conv(data.x, data.edge_index)  # <-""",
        "scatter_add",
        (4,),
        (0, 3),
        "data.edge_index",
        ((1, 2),),
        SCATTER,
        "scatter_add_(dim, index, src)",
    ),
    "graph: edge from a node that is not there": Mistake(
        GRAPHS,
        """\
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = GCNConv(3, 2)

    def forward(self, data):
        x, edges = data.x, data.edge_index
        return self.conv(x, edges).relu()

net = Net().cuda()
edge_index[0, 3] = 7
h = net(Data(x=x, edge_index=edge_index).to("cuda"))  # <-""",
        "x[index]",
        (7,),
        (-4, 3),
        "edges",
        ((0, 3),),
        INDEX,
        "deg_inv_sqrt[row]",
    ),
    "graph: SAGEConv": Mistake(
        GRAPHS,
        """\
conv = SAGEConv(3, 2).cuda()
edges = edge_index.cuda()
edges[1, 0] = 5
h = conv(x.cuda(), edges)  # <-""",
        "scatter_add",
        (5,),
        (0, 3),
        "edges",
        ((1, 0),),
        SCATTER,
        "scatter_add_(0, index,",
    ),
    "graph: GATConv": Mistake(
        GRAPHS,
        """\
conv = GATConv(3, 2).cuda()
data = Data(x=x, edge_index=edge_index.clone()).to("cuda")
data.edge_index[0, 1] = -1
h = conv(data.x, data.edge_index)  # <-""",
        "index_select",
        (-1,),
        (0, 3),
        "data.edge_index",
        ((0, 1),),
        LOOKUP,
        "src.index_select(self.node_dim, index)",
    ),
    "graph: batch vector": Mistake(
        GRAPHS,
        """\
batch = Batch.from_data_list(graphs).to("cuda")
batch.batch[5] = -1
h = global_add_pool(batch.x, batch.batch)  # <-""",
        "scatter_add",
        (-1,),
        (0, 2),
        "batch.batch",
        ((5,),),
        SCATTER,
        "scatter_add_(dim, index, src)",
    ),
    "graph: fewer graphs than the batch has": Mistake(
        GRAPHS,
        """\
batch = Batch.from_data_list(graphs).to("cuda")
h = global_add_pool(batch.x, batch.batch, size=2)  # <-""",
        "scatter_add",
        (2,),
        (0, 1),
        "batch.batch",
        ((8,), (9,), (10,), (11,)),
        SCATTER,
    ),
    "graph: class": Mistake(
        GRAPHS,
        """\
head = torch.nn.Linear(3, 2).cuda()
for data in DataLoader(graphs, batch_size=3):
    data = data.to("cuda")
    out = head(global_add_pool(data.x, data.batch))
    loss = F.cross_entropy(out, data.y)  # <-""",
        "cross_entropy",
        (2,),
        (0, 1),
        "data.y",
        ((2,),),
        LOSS,
    ),
}
