@0xd3a1f09c54be7721;

interface Echo {
  call @0 (request :Data) -> (reply :Data);
}
