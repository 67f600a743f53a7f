"""Hydra itself: the user's folders on its search path, and compositions that are not plain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ablate.config import options
from ablate.errors import ConfigError

__all__ = ["compose_with_hydra", "interpolate", "register"]

SCHEME = "ablate-user"
_cwd = Path()


class UserSource(ConfigSource):
    """The user's `./conf/<group>/` and `./sweeps/`, never a primary configuration."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def available(self) -> bool:
        return True

    def load_config(self, config_path: str) -> ConfigResult:
        path = self._find(config_path)
        if path is None:
            raise ConfigLoadError(f"Config not found : {config_path}")
        header = ConfigSource._get_header_dict(path.read_text(encoding="utf-8")[:512])
        place = f"{SCHEME}://{self.path}"
        return ConfigResult(
            config=OmegaConf.load(path), path=place, provider=self.provider, header=header
        )

    def is_group(self, config_path: str) -> bool:
        return bool(config_path) and any(p.is_dir() for p in self._folders(config_path))

    def is_config(self, config_path: str) -> bool:
        return self._find(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        files: list[str] = []
        for folder in self._folders(config_path):
            for p in folder.iterdir() if folder.is_dir() else ():
                self._list_add_result(
                    files, f"{config_path}/{p.name}".lstrip("/"), p.name, results_filter
                )
        return sorted(set(files))

    def _folders(self, group: str) -> Sequence[Path]:
        return options.folders(group, Path(self.path))[:-1]  # without ours

    def _find(self, config_path: str) -> Path | None:
        group, _, name = self._normalize_file_name(config_path).partition("/")
        if not name:
            return None
        return next((p for folder in self._folders(group) if (p := folder / name).is_file()), None)


class UserSearchPath(SearchPathPlugin):
    """Puts the user's folders before ours."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.prepend("ablate", f"{SCHEME}://{_cwd}", anchor=SearchPathQuery("main", None))


def register(cwd: Path | None = None) -> None:
    """Makes Hydra find the user's `./conf` and `./sweeps`; call it before `hydra.main`."""
    global _cwd
    _cwd = Path.cwd() if cwd is None else Path(cwd).absolute()
    plugins = Plugins.instance()
    plugins.register(UserSource)
    if UserSearchPath not in plugins.discover(SearchPathPlugin):
        plugins.register(UserSearchPath)


def compose_with_hydra(overrides: Sequence[str], cwd: Path | None = None) -> dict[str, Any]:
    """What Hydra makes of `overrides`.

    Raises:
        ConfigError: with Hydra's own words.
    """
    register(cwd)
    running, GlobalHydra.instance().hydra = (
        GlobalHydra.instance().hydra,
        None,
    )  # inside a job of a multirun
    try:
        with initialize_config_module("ablate.conf", version_base="1.3"):
            return _plain(compose("train", list(overrides)))
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        words = " ".join(str(error).split())
        raise ConfigError("override", " ".join(overrides), f"Hydra refuses it: {words}") from error
    finally:
        GlobalHydra.instance().hydra = running


def interpolate(tree: dict[str, Any]) -> dict[str, Any]:
    """`tree` with its `${...}` replaced."""
    try:
        return _plain(OmegaConf.create(tree))
    except OmegaConfBaseException as error:
        words = str(error).strip().splitlines()[0]
        key = getattr(error, "full_key", None) or "override"
        raise ConfigError(key, "${...}", f"cannot be interpolated: {words}") from error


def _plain(config: Any) -> dict[str, Any]:
    result = OmegaConf.to_container(config, resolve=True)
    assert isinstance(result, dict)
    return {str(k): v for k, v in result.items()}
