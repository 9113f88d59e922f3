"""nvFuser's options in `execute`."""

import pytest
import torch

from tests.frontends.support import build_definition
from tofuse.errors import DefinitionError


def test_known_options_have_no_effect_and_unknown_ones_are_errors():
    x = torch.randn(4)
    fd = build_definition(lambda fd, t: fd.ops.exp(t), [x])
    options = {"_enable_options": ["fuse_matmul"], "_disable_options": ["matmul_expr_eval"]}
    torch.testing.assert_close(fd.execute([x], **options), [x.exp()])
    torch.testing.assert_close(fd.execute([x], _enable_options=[]), [x.exp()])
    with pytest.raises(DefinitionError, match="enable_option 'fuse_matmuls'; did you mean"):
        fd.execute([x], _enable_options=["fuse_matmuls"])
    with pytest.raises(DefinitionError, match="unrecognized disable_option 'fuse_matmul'"):
        fd.execute([x], _disable_options=["fuse_matmul"])
