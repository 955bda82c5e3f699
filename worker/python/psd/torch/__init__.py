"""psd for PyTorch: embedding tables on psd as modules, with TorchRec's names.

    import psd.torch as pt

    ebc = pt.EmbeddingBagCollection(client, [pt.EmbeddingBagConfig("item", 16, ["hist", "target"], lr=0.01)])
    model = Net(ebc)
    opt = pt.Optimizer(model, client, dense="psd", lr=0.01)
    for batch in pt.prefetch(loader, opt):
        loss(model(batch), batch.y).backward()
        opt.step()
    pt.save("model.pt", opt)
"""

from ._collections import EmbeddingBagCollection, EmbeddingBagConfig, EmbeddingCollection, EmbeddingConfig
from ._files import export, load, save
from ._jagged import JaggedTensor, KeyedJaggedTensor, KeyedTensor
from ._optimizer import Optimizer
from ._prefetch import prefetch

__all__ = ["EmbeddingBagCollection", "EmbeddingBagConfig", "EmbeddingCollection", "EmbeddingConfig", "JaggedTensor",
           "KeyedJaggedTensor", "KeyedTensor", "Optimizer", "export", "load", "prefetch", "save"]
