"""Every law of this folder, by name."""

from __future__ import annotations

import error_laws
import object_laws
import operation_laws
import set_laws
import tensor_laws

LAWS = {
    law.__name__: law
    for laws in (operation_laws.LAWS, error_laws.LAWS, object_laws.LAWS, set_laws.LAWS, tensor_laws.LAWS)
    for law in laws
}
