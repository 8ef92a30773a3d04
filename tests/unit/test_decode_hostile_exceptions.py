"""Exceptions whose classes and texts do all they can to run code or to make the decoder raise."""

from __future__ import annotations

import pytest

from cudassert_ipy.decode.failure import decode_exception, decode_text, is_suspect

ASSERT = "CUDA error: device-side assert triggered"
UNUSED = "{} GiB is reserved by PyTorch but unallocated"


class Ran(BaseException):
    """What all the user code below raises."""


def fail(*_args, **_kwargs):
    raise Ran


class EvilName(str):
    __slots__ = ()
    __hash__ = __eq__ = __contains__ = __format__ = __str__ = fail


class EvilMeta(type):
    __name__ = __mro__ = __dict__ = property(fail)
    __instancecheck__ = __subclasscheck__ = __getattribute__ = __hash__ = __eq__ = fail


class EvilDict(dict):
    __getitem__ = get = items = keys = __iter__ = __contains__ = fail


class EvilKey(str):
    __slots__ = ()
    __eq__ = fail

    def __hash__(self):
        return hash("error_code")


class EvilText(str):
    __slots__ = ()
    __contains__ = split = strip = __len__ = __getitem__ = encode = __str__ = fail


def evil_class():
    """Return a class that pytest must not see, since it looks at the classes of a module."""

    class EvilMembersError(Exception, metaclass=EvilMeta):
        __class__ = __dict__ = args = __cause__ = __context__ = exceptions = property(fail)
        error_code = property(fail)
        __str__ = __repr__ = __getattribute__ = __hash__ = __eq__ = __bool__ = __len__ = fail

    return EvilMembersError


class EvilGroup(ExceptionGroup):
    exceptions = message = __class__ = __dict__ = property(fail)
    __str__ = __repr__ = __getattribute__ = fail


class AcceleratorError(RuntimeError):
    __dict__ = __class__ = property(fail)


class PlainAcceleratorError(RuntimeError):
    pass


PlainAcceleratorError.__name__ = "AcceleratorError"


def _with_dict(attributes):
    error = PlainAcceleratorError(ASSERT)
    error.__dict__ = attributes
    return error


class SilentError(Exception):
    """Has no arguments, so that its text is asked for."""

    reason: type[BaseException] = Ran

    def __str__(self):
        raise self.reason


def _silent(reason):
    error = SilentError()
    error.reason = reason
    return error


HOSTILE = {
    "members": evil_class()("x"),
    "text": ValueError(EvilText(ASSERT)),
    "no text": evil_class()(),
    "name": type(EvilName("AcceleratorError"), (Exception,), {})("x"),
    "group": EvilGroup("x", [evil_class()("y"), KeyError(EvilText("z"))]),
    "dict is a property": AcceleratorError("x"),
    "dict is a subclass": _with_dict(EvilDict(error_code=710)),
    "key": _with_dict({EvilKey("error_code"): 1}),
    "code is no number": _with_dict({"error_code": EvilText("710")}),
    "code is huge": _with_dict({"error_code": 10**5000}),
    "code is negative": _with_dict({"error_code": -(10**5000)}),
    **{
        f"str raises {reason.__name__}": _silent(reason)
        for reason in (Ran, GeneratorExit, KeyboardInterrupt, SystemExit, MemoryError)
    },
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["itself", "cause", "context", "member"])
def test_no_class_makes_the_decoder_raise(name, place):
    """Whatever the class overrides, and wherever in a chain it is, both functions return."""
    error = HOSTILE[name]
    if place == "cause":
        outer = KeyError("outer")
        outer.__cause__ = error
        error = outer
    elif place == "context":
        outer = KeyError("outer")
        outer.__context__ = error
        error = outer
    elif place == "member":
        error = ExceptionGroup("outer", [error])

    is_suspect(error)
    failure = decode_exception(error)

    assert failure.kind in ("not_cuda", "device_assert")
    assert failure.to_dict()


def test_a_hostile_chain_does_not_hide_the_error_behind_it():
    """The CUDA error that a hostile exception comes from is found."""
    error = evil_class()("x")
    BaseException.__dict__["__cause__"].__set__(error, RuntimeError(ASSERT))

    assert is_suspect(error)
    assert decode_exception(error).code == 710


@pytest.mark.parametrize("code", [710, 1])
def test_error_code_is_read_past_the_class(code):
    """A property named __dict__ does not hide what torch wrote into the instance."""
    error = AcceleratorError("no words for it")
    BaseException.__dict__["__dict__"].__get__(error)["error_code"] = code

    assert decode_exception(error).code == code


@pytest.mark.parametrize(
    "code", [-1, 100_000, 10**5000, True, 710.0, "710"], ids=["-1", "6 digits", *"abcd"]
)
def test_what_cannot_be_an_error_code_is_none(code):
    """Numbers that CUDA never gives are not shown, and the text decides."""
    assert decode_exception(_with_dict({"error_code": code})).code == 710


@pytest.mark.parametrize("thing", [None, ASSERT, 3, RuntimeError, object()])
@pytest.mark.parametrize("function", [decode_exception, is_suspect])
def test_what_is_no_exception_is_refused_by_name(function, thing):
    """A text belongs into explain(), which the message says."""
    with pytest.raises(TypeError, match=rf"exception.*{type(thing).__name__}"):
        function(thing)


@pytest.mark.parametrize(
    "text",
    [
        "cuda runtime error ({}) : device-side assert triggered at x.cu:3",
        "THCudaCheck FAIL file=x.cu line=3 error={} : device-side assert triggered",
        'CUDA error at x.cu:3 code={}(cudaErrorAssert) "f()"',
        "CUDA error at x.cu:{} code=710(cudaErrorAssert)",
        "[{}] Call to cuMemcpy results in UNKNOWN_CUDA_ERROR",
        "[rank{}]: RuntimeError: " + ASSERT,
        "rank {}: RuntimeError: " + ASSERT,
        "{}: RuntimeError: " + ASSERT,
        "[{},{}]<stderr>: " + ASSERT,
        "Error {}: device-side assert triggered",
        "device-side assert triggered ({})",
        "CUDA failure {}: '" + ASSERT,
        'Program hit cudaErrorAssert (error {}) due to "device-side assert triggered"',
        "cudaSuccess ({} vs. 0) device-side assert triggered",
        "/pytorch/aten/a.cu:{}: f: block: [{},0,0], thread: [{},0,0] Assertion `x < {}` failed.",
        'Traceback (most recent call last):\n  File "x.py", line {}\nRuntimeError: x {}',
        "CUDA out of memory. Tried to allocate {} GiB ({} GiB reserved in total by PyTorch)",
        "CUDA out of memory. Tried to allocate {} GiB. " + UNUSED,
        "torch=={}.{}.{}\nRuntimeError: " + ASSERT,
    ],
)
@pytest.mark.parametrize("digit", "910٣²")
def test_numbers_of_any_length_are_survived(text, digit):
    """Python refuses to convert more than 4300 digits; nobody's log may make the decoder raise."""
    text = text.replace("{}", digit * 5000)

    assert decode_text(text).to_dict()
    assert decode_exception(RuntimeError(text), text.encode()).to_dict()
