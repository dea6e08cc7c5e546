"""The credentials of an AWS profile, which obstore does not read by itself.

Keys in `~/.aws/credentials` or `~/.aws/config` are read here. A profile of another sort (single sign-on, a role, a program) needs boto3.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path
from typing import Any

from raydense.errors import InputError

_KEYS = {"access_key_id": "aws_access_key_id", "secret_access_key": "aws_secret_access_key", "session_token": "aws_session_token"}


def profile_options() -> dict[str, Any]:
    """Options of obstore's S3Store for the profile of the environment (AWS_PROFILE, or `default`).

    Empty where the environment has keys itself, or no such profile is asked for: the machine's own role is used then.
    """
    asked = os.environ.get("AWS_PROFILE")
    if os.environ.get("AWS_ACCESS_KEY_ID") or os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
        return {}
    found = _profile(asked or "default")
    if asked and not found:
        raise InputError(f"has no profile {asked!r}", _file("credentials"), "correct AWS_PROFILE, or write the profile")
    options: dict[str, Any] = {"region": found["region"]} if found.get("region") else {}
    if found.get("aws_access_key_id"):
        return options | {option: found[key] for option, key in _KEYS.items() if found.get(key)}
    if found.keys() & {"sso_session", "sso_start_url", "role_arn", "credential_process"}:
        return options | {"credential_provider": _by_boto3(asked or "default")}
    return options


def credential_files() -> list[Path]:
    """The files that credentials may be in: those of AWS's profiles, and Google's key that the environment names."""
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    return [_file("credentials"), _file("config"), *([Path(named)] if named else [])]


def _by_boto3(profile: str) -> Any:
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        what = f"its profile {profile!r} gives credentials by single sign-on, a role or a program, which needs boto3"
        fix = 'pip install boto3, or put keys into the environment: eval "$(aws configure export-credentials --format env)"'
        raise InputError(what, _file("config"), fix) from None
    return Boto3CredentialProvider(boto3.Session(profile_name=profile))


def _profile(name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for kind, section in (("config", name if name == "default" else f"profile {name}"), ("credentials", name)):
        parser = configparser.RawConfigParser()
        parser.read(_file(kind))
        if parser.has_section(section):
            found |= dict(parser.items(section))
    return found


def _file(kind: str) -> Path:
    named = {"credentials": "AWS_SHARED_CREDENTIALS_FILE", "config": "AWS_CONFIG_FILE"}[kind]
    return Path(os.environ.get(named) or os.path.expanduser(f"~/.aws/{kind}"))  # which, unlike pathlib's, is no error without a home
