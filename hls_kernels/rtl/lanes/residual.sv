// What is added to the residual stream: a product in fixed point and its bias, then the stream,
// clipped to 30 bits each time.
module residual (
    input wire clk,
    input wire signed [31:0] product_value,
    input wire signed [31:0] bias,
    input wire signed [31:0] x,
    output wire signed [31:0] out,
    output wire changed
);
    localparam signed [31:0] MOST = 32'sd1073741823;

    reg signed [31:0] biased, added;
    wire signed [31:0] clipped, x_2;
    wire changed_bias, changed_bias_2, changed_sum;

    always @(posedge clk) begin
        biased <= product_value + bias;
        added <= clipped + x_2;
    end
    clip clip_bias (
        .clk(clk), .value(biased), .limit(MOST), .out(clipped), .changed(changed_bias));
    delay #(.WIDTH(32), .DEPTH(2)) for_sum (.clk(clk), .in(x), .out(x_2));
    clip clip_sum (.clk(clk), .value(added), .limit(MOST), .out(out), .changed(changed_sum));
    delay #(.WIDTH(1), .DEPTH(2)) for_mark (
        .clk(clk), .in(changed_bias), .out(changed_bias_2));
    assign changed = changed_bias_2 | changed_sum;
endmodule
