"""Models of other people's libraries, small and with random weights, as cells would make them."""

SETUP = """
import torch
import torch.nn.functional as F
import transformers
from transformers import (
    BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel, LlamaConfig,
    LlamaForCausalLM, T5Config, T5ForConditionalGeneration, ViTConfig, ViTForImageClassification,
    WhisperConfig, WhisperForConditionalGeneration,
)

transformers.logging.set_verbosity_error()
torch.manual_seed(0)

def small_bert():
    return BertForSequenceClassification(BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, num_labels=3)).eval()

def small_gpt2():
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=100, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1,
        eos_token_id=2, pad_token_id=0)).eval()

def small_llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=100, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
        bos_token_id=1, eos_token_id=2, pad_token_id=0)).eval()

def small_t5():
    return T5ForConditionalGeneration(T5Config(
        vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)).eval()

def small_whisper():
    return WhisperForConditionalGeneration(WhisperConfig(
        vocab_size=100, num_mel_bins=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, d_model=32, encoder_ffn_dim=64,
        decoder_ffn_dim=64, max_source_positions=30, max_target_positions=20,
        decoder_start_token_id=3, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        begin_suppress_tokens=None, suppress_tokens=None)).eval()

def small_vit():
    return ViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=16, patch_size=4, num_labels=5)).eval()

ids = torch.randint(3, 100, (2, 8))
ones = torch.ones_like(ids)
sound = torch.randn(2, 16, 60)
pictures = torch.randn(2, 3, 16, 16)
"""

GRAPHS = """
import torch
import torch.nn.functional as F
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATConv, GCNConv, SAGEConv, global_add_pool

torch.manual_seed(0)
x = torch.randn(4, 3)
edge_index = torch.tensor([[0, 1, 2, 3, 1], [1, 2, 3, 0, 3]])
graphs = [Data(x=x, edge_index=edge_index, y=torch.tensor([i])) for i in range(3)]
"""

STEP = """
model = {model}().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
batch = {{name: value.to(device) for name, value in dict({batch}).items()}}
out = model(**batch)
out.loss.backward()
optimizer.step()
result = [out.loss, *model.parameters()]
"""

GENERATE = """
model = {model}().to(device)
torch.manual_seed(1)
result = [model.generate({prompt}, max_new_tokens=5, {options})]
"""

LAYER = """
layer = {layer}(3, 4).to(device)
data = Batch.from_data_list(graphs).to(device)
h = layer(data.x, data.edge_index).relu()
out = torch.nn.Linear(4, 3).to(device)(global_add_pool(h, data.batch))
loss = F.cross_entropy(out, data.y)
loss.backward()
result = [loss, *(p.grad for p in layer.parameters())]
"""

LOADER = """
layer = GCNConv(3, 3).to(device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for data in DataLoader(graphs, batch_size=2):
    data = data.to(device)
    optimizer.zero_grad()
    out = global_add_pool(layer(data.x, data.edge_index), data.batch)
    F.cross_entropy(out, data.y).backward()
    optimizer.step()
result = list(layer.parameters())
"""

VARIANTS = {
    "bert: autocast": (
        SETUP,
        """
model = small_bert().to(device)
with torch.autocast(device, dtype=torch.bfloat16):
    out = model(ids.to(device), labels=torch.tensor([0, 1]).to(device))
out.loss.backward()
result = [out.loss, *(p.grad for p in model.parameters())]
""",
    ),
    "bert: DataParallel": (
        SETUP,
        """
model = small_bert().to(device)
model = torch.nn.DataParallel(model) if device == "cuda" else model
result = [model(ids.to(device), attention_mask=ones.to(device)).logits]
""",
    ),
    "gpt2: half": (
        SETUP,
        """
model = small_gpt2().half().to(device)
result = [model(ids.to(device), labels=ids.to(device)).loss]
""",
    ),
    "llama: gradient checkpointing": (
        SETUP,
        """
model = small_llama().to(device).train()
model.gradient_checkpointing_enable()
loss = model(ids.to(device), labels=ids.to(device)).loss
loss.backward()
result = [loss, *(p.grad for p in model.parameters())]
""",
    ),
    "gpt2: beams": (
        SETUP,
        GENERATE.format(
            model="small_gpt2",
            prompt="ids.to(device), attention_mask=ones.to(device)",
            options="num_beams=3, num_return_sequences=2",
        ),
    ),
    "llama: static cache, padding on the left": (
        SETUP,
        "ids[0, :3] = ones[0, :3] = 0\n"
        + GENERATE.format(
            model="small_llama",
            prompt="ids.to(device), attention_mask=ones.to(device)",
            options='do_sample=False, cache_implementation="static", disable_compile=True',
        ),
    ),
    "vit: gradient scaler": (
        SETUP,
        """
model = small_vit().to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler(device)
with torch.autocast(device, dtype=torch.bfloat16):
    labels = torch.tensor([0, 1]).to(device)
    loss = model(pixel_values=pictures.to(device), labels=labels).loss
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
result = [loss]
""",
    ),
    "graph: pooling and dense batches": (
        GRAPHS,
        """
from torch_geometric.nn import GINConv, TopKPooling, global_max_pool
from torch_geometric.utils import degree, to_dense_adj, to_dense_batch
data = Batch.from_data_list(graphs).to(device)
h = GINConv(torch.nn.Linear(3, 4)).to(device)(data.x, data.edge_index)
adjacency = to_dense_adj(data.edge_index, data.batch)
h, edges, _, batch, _, _ = TopKPooling(4).to(device)(h, data.edge_index, None, data.batch)
dense, mask = to_dense_batch(h, batch)
result = [global_max_pool(h, batch), dense, mask, adjacency, degree(edges[0], len(h))]
""",
    ),
    "graph: two kinds of nodes": (
        GRAPHS,
        """
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv
data = HeteroData()
data["author"].x, data["paper"].x = torch.randn(3, 3), torch.randn(4, 3)
data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 1, 2], [3, 2, 0]])
data = data.to(device)
conv = HeteroConv({("author", "wrote", "paper"): SAGEConv((3, 3), 2)}).to(device)
result = [conv(data.x_dict, data.edge_index_dict)["paper"]]
""",
    ),
}

_BATCHES = {
    "bert": "input_ids=ids, attention_mask=ones, token_type_ids=ones, labels=torch.tensor([0, 2])",
    "gpt2": "input_ids=ids, labels=ids",
    "llama": "input_ids=ids, attention_mask=ones, labels=ids",
    "t5": "input_ids=ids, labels=ids",
    "whisper": "input_features=sound, labels=ids",
    "vit": "pixel_values=pictures, labels=torch.tensor([0, 4])",
}
_PROMPTS = {
    "gpt2": "ids.to(device), attention_mask=ones.to(device)",
    "llama": "ids.to(device), attention_mask=ones.to(device)",
    "t5": "ids.to(device), attention_mask=ones.to(device)",
    "whisper": "sound.to(device)",
}

HEALTHY: dict[str, tuple[str, str]] = {
    **{
        f"{name}: step": (SETUP, STEP.format(model=f"small_{name}", batch=batch))
        for name, batch in _BATCHES.items()
    },
    **{
        f"{name}: greedy": (
            SETUP,
            GENERATE.format(model=f"small_{name}", prompt=prompt, options="do_sample=False"),
        )
        for name, prompt in _PROMPTS.items()
    },
    **{
        f"{name}: sample": (
            SETUP,
            GENERATE.format(model=f"small_{name}", prompt=prompt, options="do_sample=True"),
        )
        for name, prompt in _PROMPTS.items()
    },
    **{
        f"graph: {layer}": (GRAPHS, LAYER.format(layer=layer))
        for layer in ("GCNConv", "SAGEConv", "GATConv")
    },
    "graph: loader": (GRAPHS, LOADER),
    **VARIANTS,
}
"""Code of a cell before it and of the cell, by name; ``device`` is given, ``result`` compared."""
