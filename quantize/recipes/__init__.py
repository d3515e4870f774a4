"""What can be built: recipes, the types behind them, and what decides a file's bytes."""
