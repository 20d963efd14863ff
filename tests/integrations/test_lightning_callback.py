"""`CarpCallback` in a Lightning loop: its loss is added, its head is trained and saved, and it diagnoses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import carp
from carp.errors import ConfigError

pl = pytest.importorskip("pytorch_lightning", reason="Lightning is not installed")
SMALL: dict[str, Any] = {"embedding": 8, "hidden": 16, "num_prototypes": 32, "block_size": 8, "health_steps": 4}


class Classifier(pl.LightningModule):  # type: ignore[misc,name-defined]
    """Someone else's module: an encoder, a classifier, a cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.classifier = nn.Linear(12, 2)
        self.losses: list[float] = []

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.classifier(self.encoder(images)), labels)
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def views(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    images, _ = batch
    return images + 0.1 * torch.randn_like(images), images.flip(-1)


def loader() -> Any:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(64, 3, 8, 8, generator=generator)
    return torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0.5).long()), batch_size=32
    )


def fit(module: Any, callback: Any, folder: Path, epochs: int = 5, **options: Any) -> Any:
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        callbacks=[callback] if callback else [],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        log_every_n_steps=1,
        **options,
    )
    trainer.fit(module, loader())
    return trainer


def test_the_loss_is_added_and_the_head_is_trained(tmp_path: Path) -> None:
    pl.seed_everything(0)
    module, callback = Classifier(), carp.CarpCallback(views, 12, **SMALL)
    trainer = fit(module, callback, tmp_path, enable_checkpointing=False)
    assert len(module.losses) == 10
    logged = trainer.callback_metrics
    assert 0 < float(logged["carp/consistency"]) < 20
    assert 0 < float(logged["carp/agreement"]) <= 1
    assert callback.diagnosis is not None
    assert callback.diagnosis.verdict == "too early to tell"
    fresh = carp.CarpCallback(views, 12, **SMALL)
    pl.seed_everything(0)
    untouched = Classifier()
    fresh.setup(trainer, untouched, "fit")
    for part in ("projector", "assigner"):
        ours = torch.cat([p.flatten() for p in getattr(module.carp, part).parameters()])
        theirs = torch.cat([p.flatten() for p in getattr(untouched.carp, part).parameters()])
        assert not torch.equal(ours, theirs), part
    teacher = torch.cat([p.flatten() for p in module.carp.teacher[0].parameters()])
    student = torch.cat([p.flatten() for p in module.encoder.parameters()])
    start = torch.cat([p.flatten() for p in untouched.encoder.parameters()])
    assert 0 < float((teacher - start).norm()) < float((student - start).norm())  # it follows slowly
    assert "training_step" not in module.__dict__


def test_the_gradient_is_that_of_both_losses(tmp_path: Path) -> None:
    """With a weight of 0 the module trains as it does alone."""
    ends = []
    for callback in (None, carp.CarpCallback(views, 12, weight=0.0, **SMALL)):
        pl.seed_everything(0)
        module = Classifier()
        fit(module, callback, tmp_path, epochs=2, enable_checkpointing=False)
        ends.append(module.classifier.weight.detach())
    assert torch.allclose(*ends, atol=1e-3)
    pl.seed_everything(0)
    module = Classifier()
    fit(module, carp.CarpCallback(views, 12, weight=5.0, **SMALL), tmp_path, epochs=2, enable_checkpointing=False)
    assert not torch.allclose(module.classifier.weight.detach(), ends[0], atol=1e-3)


def test_a_checkpoint_has_the_head_and_training_goes_on_from_it(tmp_path: Path) -> None:
    pl.seed_everything(0)
    module = Classifier()
    trainer = fit(module, carp.CarpCallback(views, 12, **SMALL), tmp_path, epochs=1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    again = Classifier()
    callback = carp.CarpCallback(views, 12, **SMALL)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(again, loader(), ckpt_path=tmp_path / "a.ckpt")
    assert trainer.global_step == 4


def test_a_collapse_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Views that do not depend on the image leave nothing to learn."""
    pl.seed_everything(0)

    def constant(batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        images, _ = batch
        one = torch.zeros_like(images)
        return one, one

    callback = carp.CarpCallback(constant, 12, **SMALL)
    fit(Classifier(), callback, tmp_path, epochs=3, enable_checkpointing=False)
    assert callback.diagnosis is not None
    assert callback.diagnosis.verdict == "collapsed"
    assert capsys.readouterr().err.count("collapsed") == 1


def test_mistakes_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="divisor"):
        carp.CarpCallback(views, 12, num_prototypes=32, block_size=7)
    with pytest.raises(ConfigError, match="no encoder 'backbone'"):
        fit(Classifier(), carp.CarpCallback(views, 12, encoder="backbone", **SMALL), tmp_path)
    manual = Classifier()
    manual.automatic_optimization = False
    with pytest.raises(ConfigError, match="automatic optimisation"):
        fit(manual, carp.CarpCallback(views, 12, **SMALL), tmp_path)
